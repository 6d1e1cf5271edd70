# SPDX-License-Identifier: Apache-2.0
"""Settings of PPOTrainer."""

from dataclasses import dataclass
from typing import Annotated

from ...bounds import Bounds, Count, NotNegative, Share
from ...default_sizes import PPO
from .algorithm import Algorithm
from .base import RLConfig, _field

PPO_AGGREGATIONS = ("token", "sequence", "constant")


@dataclass
class PPOConfig(RLConfig):
    """Settings of [`PPOTrainer`]. All batch sizes count completions.

    A rollout holds `per_device_train_batch_size x steps_per_generation` completions per process. It is trained on in
    `ppo_update_iters` passes over shuffled mini-batches of `mini_batch_size`; `gradient_accumulation_steps` of them
    make an optimizer step. So a rollout takes `ppo_update_iters x completions / (mini_batch_size x
    gradient_accumulation_steps)` steps, no matter how many of them an early stop skips.
    """

    per_device_train_batch_size: int = _field(
        PPO["per_device_train_batch_size"], "Completions per process and rollout (x steps_per_generation)."
    )
    num_generations: Count = _field(PPO["num_generations"], "Completions per prompt.")
    mini_batch_size: Count = _field(PPO["mini_batch_size"], "Completions per process and micro-batch of the update.")
    ppo_update_iters: Count = _field(2, "Passes over each rollout.")
    clip_epsilon: NotNegative = _field(0.2, "Clip range of the ratio: 1 - clip_epsilon to 1 + clip_epsilon.")
    kl_coef: NotNegative = _field(0.02, "Weight of the KL penalty to the reference. 0: no reference model is kept.")
    early_stop_kl: NotNegative | None = _field(
        0.25, "Skip the rest of a rollout's updates once approx_kl is above this. Unset: never."
    )
    loss_aggregation: Annotated[str, Bounds(choices=PPO_AGGREGATIONS)] = _field(
        "token", "'token': mean over all tokens; 'sequence': over tokens, then sequences; 'constant': fixed length."
    )

    # Critic
    gamma: Share = _field(1.0, "Discount of later rewards.")
    lam: Share = _field(0.95, "GAE: weight of the longer returns.")
    vf_coef: NotNegative = _field(0.5, "Weight of the value loss.")
    cliprange_value: NotNegative = _field(
        0.2, "How far a value may move from that at sampling before its gradient stops."
    )
    critic_learning_rate: NotNegative = _field(
        5e-7, "Peak learning rate of the critic; same schedule as the policy's."
    )
    save_critic: bool = _field(
        True, "Keep the critic beside the policy in the run's folder and on the Hub; checkpoints always hold it."
    )
    critic_model_name_or_path: str | None = _field(
        None, "Critic to start from: a model, or the critic folder of an earlier run. Unset: the policy's weights."
    )
    share_critic_base: bool = _field(
        True, "With adapters, the critic is one more adapter on the policy's frozen base; False: a separate model."
    )

    def __post_init__(self):
        super().__post_init__()
        if self.turn_discount < 1:
            raise ValueError(
                f"turn_discount ({self.turn_discount}) discounts the turns of GRPO. PPO discounts later rewards token "
                "by token: set gamma, and leave turn_discount at 1.0."
            )
        if self.early_stop_kl is not None and self.fp16:
            raise ValueError(
                f"fp16=True with early_stop_kl ({self.early_stop_kl}): the gradient scaler of fp16 cannot pass "
                "over updates that are skipped. Use bf16=True, or set early_stop_kl to None."
            )
        per_step = self.mini_batch_size * self.gradient_accumulation_steps
        if self.completions_per_rollout % per_step:
            raise ValueError(
                f"A rollout of {self.completions_per_rollout} completions per process (per_device_train_batch_size "
                f"{self.per_device_train_batch_size} x steps_per_generation {self.steps_per_generation}) is not a "
                f"whole number of optimizer steps of {per_step} (mini_batch_size {self.mini_batch_size} x "
                f"gradient_accumulation_steps {self.gradient_accumulation_steps}). Make it a multiple of {per_step}."
            )

    @property
    def algorithm(self) -> Algorithm:
        return Algorithm("PPO", "Proximal Policy Optimization Algorithms", "1707.06347")

    @property
    def micro_batches_per_rollout(self) -> int:
        return self.completions_per_rollout // self.mini_batch_size * self.ppo_update_iters
