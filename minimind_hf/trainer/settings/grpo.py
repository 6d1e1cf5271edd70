# SPDX-License-Identifier: Apache-2.0
"""Settings of GRPOTrainer: trl's names with trl's meaning, except where a default is MiniMind's."""

from dataclasses import dataclass, fields
from typing import Annotated

import trl
from torch import Tensor
from transformers.utils import logging

from ...algorithms import (
    IMPORTANCE_SAMPLING_LEVELS,
    LOSS_AGGREGATIONS,
    MULTI_OBJECTIVE_AGGREGATIONS,
    OBJECTIVES,
    SCALE_REWARDS,
    LossSettings,
    Objective,
    resolve_loss_type,
    turn_advantages,
)
from ...bounds import Bounds, Count, NotNegative, Positive, Share
from ...default_sizes import GRPO
from .algorithm import Algorithm
from .algorithms import advantage_of, level_notices, objective_of
from .base import RLConfig, _field
from .dynamic_sampling import DynamicSamplingSettings
from .generation_kwargs import resolve_generation_kwargs
from .trl_defaults import DEFAULTS, say_other_defaults, take_trl_defaults
from .trl_fields import refuse_unsupported, say_without_effect, takes_fields_of

logger = logging.get_logger(__name__)


@dataclass
@takes_fields_of(trl.GRPOConfig)
class GRPOConfig(DynamicSamplingSettings, RLConfig):
    """Settings of [`GRPOTrainer`]. The batch sizes count completions, as in trl."""

    _VALID_DICT_FIELDS = RLConfig._VALID_DICT_FIELDS + ["generation_kwargs"]

    defaults: Annotated[str | None, Bounds(choices=(None, *DEFAULTS))] = _field(
        None,
        "'trl': trl's own defaults (dapo, beta 0, learning rate 1e-6, temperature 1, no thinking, ...) for settings "
        "that are not given. 'minimind': those here, without a message to users of trl.",
    )
    per_device_train_batch_size: int = _field(
        GRPO["per_device_train_batch_size"], "Completions per process and micro-batch (2 prompts x 6)."
    )
    generation_kwargs: dict | str | None = _field(
        None, "Settings of rollouts by the names of transformers' GenerationConfig; they win over the fields."
    )

    # Loss
    beta: NotNegative = _field(0.1, "Weight of the KL penalty to the reference. 0: no reference model is kept.")
    num_iterations: Count = _field(1, "Passes over each rollout (mu in the GRPO paper).")
    loss_type: str = _field(
        "cispo",
        "'cispo' (clipped, detached importance weight) or 'grpo' (clipped objective); 'dr_grpo', 'dapo', 'bnpo' and "
        "'luspo' are grpo with another loss_aggregation; 'sapo' and 'vespo' weigh smoothly in place of a clip. Or the "
        "import path of your own, 'file.py:function'.",
    )
    epsilon: NotNegative = _field(0.2, "Clip range of the grpo ratio: 1 - epsilon to 1 + epsilon.")
    epsilon_high: NotNegative | None = _field(
        None, "cispo: absolute cap of the ratio (unset: 5.0). grpo: upper clip 1 + epsilon_high (unset: epsilon)."
    )
    delta: float | None = _field(
        None, "grpo: bound of the ratio where the advantage is negative; above 1 + epsilon_high. Unset: none."
    )
    importance_sampling_level: Annotated[str, Bounds(choices=IMPORTANCE_SAMPLING_LEVELS)] = _field(
        "token",
        "'token': a ratio for each token; 'sequence': one for each completion (GSPO); 'sequence_token': the same "
        "value, with each token's own gradient (GSPO-token).",
    )
    sapo_temperature_pos: Positive = _field(1.0, "sapo: how fast the gate closes where the advantage is above 0.")
    sapo_temperature_neg: Positive = _field(1.05, "sapo: the same for all other tokens.")
    vespo_k_pos: float = _field(2.0, "vespo: power of the completion's ratio where the advantage is at least 0.")
    vespo_lambda_pos: NotNegative = _field(3.0, "vespo: decay with that ratio where the advantage is at least 0.")
    vespo_k_neg: float = _field(3.0, "vespo: power of the completion's ratio where the advantage is below 0.")
    vespo_lambda_neg: NotNegative = _field(2.0, "vespo: decay with that ratio where the advantage is below 0.")
    use_bias_correction_kl: bool = _field(False, "Multiply the KL penalty of a token by its ratio.")
    off_policy_mask_threshold: Annotated[float | None, Bounds(above=0, remedy="Unset, it drops nothing.")] = _field(
        None, "Drop completions of negative advantage whose mean old - new log-probability is above this. Unset: none."
    )
    loss_aggregation: Annotated[str | None, Bounds(choices=(None, *LOSS_AGGREGATIONS))] = _field(
        None,
        "'sequence': mean over tokens, then sequences; 'token': over all tokens; 'constant': fixed length; "
        "'local_token': over the tokens of each micro-batch; 'sequence_sum': sum over tokens, mean over sequences. "
        "Unset: that of the loss_type, 'sequence' for cispo.",
    )
    top_entropy_quantile: Share = _field(
        1.0, "Share of the tokens, those of highest entropy in a micro-batch, that the policy's term sees."
    )
    entropy_coef: float = _field(0.0, "Weight of the mean entropy of the tokens, which is added to the objective.")
    use_adaptive_entropy: bool = _field(
        False,
        "Move entropy_coef after each step: up where the entropy is at most entropy_target, else down. The bonus is "
        "given only in the first case.",
    )
    entropy_coef_min: float = _field(0.0, "The least that use_adaptive_entropy moves entropy_coef to.")
    entropy_coef_max: float = _field(1.0, "The most that use_adaptive_entropy moves entropy_coef to.")
    entropy_coef_delta: NotNegative = _field(0.005, "How far use_adaptive_entropy moves entropy_coef in a step.")
    entropy_target: float = _field(
        0.2, "Mean entropy per token, in nats, that use_adaptive_entropy aims at. Start near that of the first steps."
    )

    # Rewards
    advantage_estimator: str = _field(
        "group",
        "How completions of a prompt are compared. 'group': with their mean and std (GRPO); 'rloo': with the mean of "
        "the others; 'reinforce_baseline': with their mean, whitened over the batch. Or the import path of your own, "
        "'file.py:function'.",
    )
    scale_rewards: Annotated[str | None, Bounds(choices=(None, *SCALE_REWARDS))] = _field(
        None, "Divide advantages by the std of the 'group', the 'batch', or 'none'. Unset: 'group'."
    )
    multi_objective_aggregation: Annotated[str, Bounds(choices=MULTI_OBJECTIVE_AGGREGATIONS)] = _field(
        "sum_then_normalize",
        "'sum_then_normalize': advantages of the weighted sum of the rewards; 'normalize_then_sum': each reward is "
        "normalized in its group first (GDPO).",
    )

    # Reference
    sync_ref_model: bool = _field(False, "Let the reference follow the policy.")
    ref_model_mixup_alpha: Share = _field(0.6, "Share of the policy's weights in each update of the reference.")
    ref_model_sync_steps: Count = _field(512, "Steps between two such updates.")

    def __post_init__(self):
        if not hasattr(self, "_settled"):  # only when they are made: later changes are the user's
            take_trl_defaults(self)
        if isinstance(self.scale_rewards, bool):
            self.scale_rewards = "group" if self.scale_rewards else "none"
        resolve_generation_kwargs(self)
        refuse_unsupported(self)  # before types are checked: whatever the value, the field has no effect
        super().__post_init__()
        if self.num_generations < 2:
            raise ValueError(
                f"GRPO compares the completions of one prompt and needs num_generations of at least 2, got "
                f"{self.num_generations}. With one completion per prompt use PPO, which has a critic."
            )
        self._check_loss()
        self._check_entropy()
        self._check_token_choice()
        self._check_reference()
        self._check_advantages()
        if self.turn_discount < 1:
            self.check_turns()
        say_without_effect(self)

    def check_again(self) -> None:
        super().check_again()
        say_other_defaults(self)

    def _check_loss(self) -> None:
        objective, self.loss_aggregation = resolve_loss_type(self._loss, self.loss_aggregation)
        self._check_clips(objective)
        for notice in level_notices(self.loss_type, self.importance_sampling_level, self.loss_aggregation):
            logger.warning(notice)

    def _check_entropy(self) -> None:
        if self.use_adaptive_entropy and self.entropy_coef_min > self.entropy_coef_max:
            raise ValueError(
                f"entropy_coef_min={self.entropy_coef_min} is above entropy_coef_max={self.entropy_coef_max}, between "
                "which use_adaptive_entropy moves entropy_coef. Swap them."
            )

    def _check_clips(self, objective: Objective) -> None:
        if objective.caps_ratio and self.upper_clip < 1:
            logger.warning(
                "epsilon_high=%s is below 1: for %s it is the largest importance weight itself, so even tokens "
                "whose probability has not changed (ratio 1) are scaled down. 5.0 is the default; 0.28 and the like "
                "are distances from 1 for loss_type='grpo'.",
                self.epsilon_high,
                self.loss_type,
            )
        if self.delta is None:
            return
        if not objective.takes_delta:
            instead = f"by epsilon_high ({self.upper_clip}) alone" if objective.caps_ratio else "in its own way"
            raise ValueError(
                f"delta={self.delta} bounds the ratio of the grpo objective; that of loss_type={self.loss_type!r} is "
                f"bounded {instead}. Leave delta unset, or set loss_type='grpo'."
            )
        if not self.delta > 1 + self.upper_clip:
            raise ValueError(
                f"delta={self.delta} must be above 1 + epsilon_high = {1 + self.upper_clip}: below that it would undo "
                "the upper clip."
            )

    def _check_advantages(self) -> None:
        """Settles `scale_rewards`, whose default is that of the estimator."""
        scales = advantage_of(self.advantage_estimator).scales
        if self.scale_rewards is None:
            self.scale_rewards = scales[0] if scales else "none"
        if self.scale_rewards not in (scales or ("none",)):
            raise ValueError(
                f"scale_rewards={self.scale_rewards!r} scales the advantages of advantage_estimator='group', but "
                f"advantage_estimator is {self.advantage_estimator!r}, which settles its scale itself. Leave "
                "scale_rewards unset."
            )
        if self.multi_objective_aggregation != "normalize_then_sum":
            return
        if self.scale_rewards != "group":
            raise ValueError(
                f"multi_objective_aggregation='normalize_then_sum' always scales by group and then by batch, but "
                f"scale_rewards is {self.scale_rewards!r}. Leave scale_rewards at 'group'."
            )
        if self.advantage_estimator != "group":
            raise ValueError(
                "multi_objective_aggregation='normalize_then_sum' compares rewards in its own way, but "
                f"advantage_estimator is {self.advantage_estimator!r}. Leave one of them at its default."
            )

    def check_turns(self) -> None:
        """Refuses settings that do not compare turns, when turns have to be compared.

        Raises:
            ValueError: Naming the setting.
        """
        if self.multi_objective_aggregation == "normalize_then_sum":
            raise ValueError(
                "multi_objective_aggregation='normalize_then_sum' compares rewards of whole completions, but turns "
                f"have rewards of their own, or turn_discount ({self.turn_discount}) is below 1. Set it to "
                "'sum_then_normalize'."
            )
        if self.advantage_estimator not in ("group", "rloo"):
            raise ValueError(
                f"advantage_estimator={self.advantage_estimator!r} compares rewards of whole completions, but turns "
                f"have rewards of their own, or turn_discount ({self.turn_discount}) is below 1. Set 'group' "
                "or 'rloo'."
            )

    def _check_token_choice(self) -> None:
        if self.top_entropy_quantile < 1 and self.max_tokens_per_microbatch is not None:
            raise ValueError(
                f"top_entropy_quantile={self.top_entropy_quantile} compares the tokens of a micro-batch over all "
                f"processes, and max_tokens_per_microbatch={self.max_tokens_per_microbatch} splits it differently on "
                "each. Leave max_tokens_per_microbatch unset and lower per_device_train_batch_size."
            )

    def _check_reference(self) -> None:
        if self.sync_ref_model and self.beta == 0:
            raise ValueError(
                "sync_ref_model=True with beta=0.0: without a KL penalty there is no reference that could follow the "
                "policy. Set beta above 0, or sync_ref_model=False."
            )

    @property
    def micro_batches_per_rollout(self) -> int:
        return self.steps_per_generation * self.num_iterations

    @property
    def algorithm(self) -> Algorithm:
        objective, advantage = self.objective, advantage_of(self.advantage_estimator)
        by_estimator = "" if self.advantage_estimator == "group" else f" with {advantage.label} advantages"
        return Algorithm(objective.label + by_estimator, objective.paper, objective.arxiv)

    @property
    def objective(self) -> Objective:
        """The row of the table of losses that `loss_type` names."""
        return objective_of(self.loss_type)

    @property
    def _loss(self) -> str | Objective:
        """What `algorithms` knows the loss by: the name of a row, or a row of the user's own."""
        return self.loss_type if self.loss_type in OBJECTIVES else self.objective

    @property
    def upper_clip(self) -> float:
        """`epsilon_high` with its default for this loss filled in."""
        return self.loss_settings().upper_clip

    def estimate_advantages(self, rewards: Tensor, num_generations: int) -> Tensor:
        """The advantages of completions, `(N,)`, by the estimator and scale of these settings."""
        advantage = advantage_of(self.advantage_estimator)
        scale = (self.scale_rewards,) if advantage.scales else ()
        return advantage.estimate(rewards, num_generations, *scale)

    def estimate_turn_advantages(self, rewards: Tensor, lengths: Tensor, num_generations: int) -> Tensor:
        """The advantages of turns, `(N, T)`: leave-one-out, at the scale of these settings."""
        return turn_advantages(rewards, lengths, num_generations, self.turn_discount, self.scale_rewards)

    def loss_settings(self) -> LossSettings:
        """What [`policy_loss`] takes from here."""
        names = {each.name for each in fields(LossSettings)} - {"loss_type"}
        return LossSettings(self._loss, **{name: getattr(self, name) for name in names})
