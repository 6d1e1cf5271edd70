# SPDX-License-Identifier: Apache-2.0
"""The mathematics of GRPO, CISPO and PPO: pure functions of tensors, importing nothing of the project."""

from .advantages import (
    MULTI_OBJECTIVE_AGGREGATIONS,
    SCALE_REWARDS,
    decoupled_advantages,
    gae,
    group_advantages,
    masked_whiten,
    mean_var_from_moments,
    moments,
    token_rewards,
    total_rewards,
    zero_variance_groups,
)
from .aggregation import LOSS_AGGREGATIONS, aggregate, loss_denominator
from .correction import ROLLOUT_CORRECTIONS, correction_weights, sampling_mismatch
from .loss_types import LOSS_TYPES, resolve_epsilon_high, resolve_loss_type
from .losses import (
    IMPORTANCE_SAMPLING_LEVELS,
    cispo_token_loss,
    explained_variance,
    grpo_token_loss,
    policy_loss,
    ppo_policy_loss,
    value_loss,
)
from .masking import completion_mask, fill_masked, length_mask, masked_mean, masked_mean_var, masked_sum
from .ratios import approx_kl, bounded_exp, clip_fraction, k3, sequence_log_ratio
from .token_choice import entropy_bonus, entropy_threshold, high_entropy_mask, off_policy_mask

__all__ = [
    "IMPORTANCE_SAMPLING_LEVELS",
    "LOSS_AGGREGATIONS",
    "LOSS_TYPES",
    "MULTI_OBJECTIVE_AGGREGATIONS",
    "ROLLOUT_CORRECTIONS",
    "SCALE_REWARDS",
    "aggregate",
    "approx_kl",
    "bounded_exp",
    "cispo_token_loss",
    "clip_fraction",
    "completion_mask",
    "decoupled_advantages",
    "entropy_bonus",
    "entropy_threshold",
    "correction_weights",
    "explained_variance",
    "fill_masked",
    "gae",
    "group_advantages",
    "grpo_token_loss",
    "high_entropy_mask",
    "k3",
    "length_mask",
    "loss_denominator",
    "masked_mean",
    "masked_mean_var",
    "masked_sum",
    "masked_whiten",
    "mean_var_from_moments",
    "moments",
    "off_policy_mask",
    "policy_loss",
    "ppo_policy_loss",
    "resolve_epsilon_high",
    "resolve_loss_type",
    "sequence_log_ratio",
    "sampling_mismatch",
    "token_rewards",
    "total_rewards",
    "value_loss",
    "zero_variance_groups",
]
