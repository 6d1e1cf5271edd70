# SPDX-License-Identifier: Apache-2.0
"""What scripts and callbacks read on trl's GRPOTrainer, under trl's names.

All are read-only: what they show is decided by the settings and by what the trainer was given.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from ..algorithms import off_policy_mask
from ..rewards.model import RewardModel
from .steps import FourSteps

_SETTINGS = (
    "beta",
    "generation_kwargs",
    "importance_sampling_level",
    "log_completions",
    "log_unique_prompts",
    "loss_type",
    "mask_truncated_completions",
    "max_completion_length",
    "max_tool_calling_iterations",
    "min_p",
    "multi_objective_aggregation",
    "num_completions_to_print",
    "num_generations",
    "num_iterations",
    "off_policy_mask_threshold",
    "pad_to_multiple_of",
    "repetition_penalty",
    "scale_rewards",
    "shuffle_dataset",
    "temperature",
    "top_entropy_quantile",
    "top_k",
    "top_p",
    "use_adaptive_entropy",
    "use_transformers_continuous_batching",
    "use_vllm",
)
"""Settings that the trainer of trl has under the same name."""


_OF_A_STEP = ("loss", "grad_norm", "learning_rate", "epoch", "step")
"""What the Trainer adds to a log of training, and no summary of trl holds."""


class TrlAttributes(FourSteps):
    """Mixin of [`GRPOTrainer`]: the attributes of trl's trainer of that name, and its last record."""

    _last_measured: dict[str, float] | None = None

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As in trl, the summary at the end holds what was measured since the log before; here, if that is nothing,
        what the last log holds."""
        if "train_loss" in logs and self._last_measured:
            logs.update({name: value for name, value in self._last_measured.items() if name not in logs})
        super().log(logs, start_time)
        if "loss" in logs:
            self._last_measured = {name: value for name, value in logs.items() if name not in _OF_A_STEP}

    @staticmethod
    def get_off_policy_mask(
        advantages: Tensor,
        per_token_logps: Tensor,
        sampling_per_token_logps: Tensor,
        mask: Tensor,
        off_policy_threshold: float,
    ) -> Tensor:
        """[`off_policy_mask`] under trl's name: of `(N, 1)` advantages, `(N, 1)`, 1 for completions that are kept."""
        expanded = advantages.expand_as(mask)
        kept = off_policy_mask(per_token_logps, sampling_per_token_logps, expanded, mask, off_policy_threshold)
        return kept[:, :1].to(advantages.dtype)

    @property
    def tools(self) -> list[Callable]:
        """The functions that the policy may call, methods of environments included."""
        return [] if self.agent is None else self.agent.functions

    @property
    def environment_factories(self) -> dict[str | None, Callable] | None:
        """What makes environments, by the name that rows choose them by; `None` is the only one."""
        return None if self.agent is None else self.agent.factories

    @property
    def reward_funcs(self) -> list[Callable | nn.Module]:
        """The reward functions; of a reward model, the model itself."""
        return [each.model if isinstance(each, RewardModel) else each for each in self.scorer.functions]

    @property
    def reward_func_names(self) -> list[str]:
        """Under which their rewards are logged."""
        return list(self.scorer.names)

    @property
    def reward_processing_classes(self) -> list[PreTrainedTokenizerBase | None]:
        """The tokenizers of reward models; `None` for other functions."""
        return list(self.scorer.processing_classes)

    @property
    def reward_weights(self) -> Tensor:
        """One for each reward function, float32."""
        return self.scorer.weights

    @property
    def ref_model(self) -> nn.Module | None:
        """The frozen policy of the start. `None` without a KL penalty, and with adapters, which need no copy."""
        return None if self.reference is None else self.reference.model

    @property
    def num_generations_eval(self) -> int:
        """Completions per prompt in evaluation."""
        return self.args.num_generations_eval or self.args.num_generations

    @property
    def chat_template_kwargs(self) -> dict[str, Any]:
        """Further arguments of the chat template."""
        return self.args.chat_template_kwargs or {}

    @property
    def epsilon_low(self) -> float:
        """Distance of the lower clip from 1."""
        return self.args.epsilon

    @property
    def epsilon_high(self) -> float:
        """The upper clip with its default filled in: for cispo the largest ratio, else its distance from 1."""
        return self.args.upper_clip

    @property
    def eos_token_ids(self) -> list[int]:
        """The ids that end a completion."""
        return list(self._rollouts.eos_token_ids)

    @property
    def router_aux_loss_coef(self) -> float:
        """Weight of a mixture of experts' balancing loss; 0 for other models."""
        return self.router_loss_coefficient

    @property
    def aux_loss_enabled(self) -> bool:
        """Whether that loss is added."""
        return self.router_loss_coefficient > 0

    @property
    def entropy_coef(self) -> float:
        """Weight of the entropy bonus as it is now; `use_adaptive_entropy` moves it."""
        return self.entropy_control.coefficient


def _setting(name: str) -> property:
    return property(lambda trainer: getattr(trainer.args, name), doc=f"`args.{name}`.")


for _name in _SETTINGS:
    setattr(TrlAttributes, _name, _setting(_name))
