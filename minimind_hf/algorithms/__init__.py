# SPDX-License-Identifier: Apache-2.0
"""The mathematics of GRPO, CISPO and PPO: pure functions of tensors, importing nothing of the project."""

from .advantages import (
    SCALE_REWARDS,
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
from .losses import (
    LOSS_TYPES,
    cispo_token_loss,
    explained_variance,
    grpo_token_loss,
    policy_loss,
    ppo_policy_loss,
    resolve_epsilon_high,
    value_loss,
)
from .masking import completion_mask, fill_masked, length_mask, masked_mean, masked_mean_var, masked_sum
from .ratios import approx_kl, bounded_exp, clip_fraction, k3

__all__ = [
    "LOSS_AGGREGATIONS",
    "LOSS_TYPES",
    "SCALE_REWARDS",
    "aggregate",
    "approx_kl",
    "bounded_exp",
    "cispo_token_loss",
    "clip_fraction",
    "completion_mask",
    "explained_variance",
    "fill_masked",
    "gae",
    "group_advantages",
    "grpo_token_loss",
    "k3",
    "length_mask",
    "loss_denominator",
    "masked_mean",
    "masked_mean_var",
    "masked_sum",
    "masked_whiten",
    "mean_var_from_moments",
    "moments",
    "policy_loss",
    "ppo_policy_loss",
    "resolve_epsilon_high",
    "token_rewards",
    "total_rewards",
    "value_loss",
    "zero_variance_groups",
]
