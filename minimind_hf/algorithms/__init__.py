# SPDX-License-Identifier: Apache-2.0
"""The mathematics of GRPO, CISPO, PPO and their relatives: pure functions of tensors.

This package imports nothing else from the project. A new loss goes into `objectives`, with a row in the table there; a
new advantage estimator goes into `advantages` in the same way. `losses` holds the code that all losses share, `ppo`
and `gae` the code that only PPO needs.
"""

from .advantages import (
    ADVANTAGES,
    MULTI_OBJECTIVE_AGGREGATIONS,
    SCALE_REWARDS,
    Advantage,
    decoupled_advantages,
    group_advantages,
    reinforce_baseline_advantages,
    rloo_advantages,
    total_rewards,
    zero_variance_groups,
)
from .aggregation import LOSS_AGGREGATIONS, aggregate, loss_denominator
from .correction import ROLLOUT_CORRECTIONS, correction_weights, sampling_mismatch
from .divergences import generalized_jsd, generalized_jsd_and_slope
from .gae import gae, masked_whiten, mean_var_from_moments, moments, token_rewards
from .loss_inputs import LossInputs
from .losses import IMPORTANCE_SAMPLING_LEVELS, policy_loss
from .masking import (
    completion_mask,
    fill_masked,
    length_mask,
    masked_mean,
    masked_mean_var,
    masked_sum,
    spread_over_turns,
    turn_numbers,
)
from .objectives import (
    LOSS_TYPES,
    OBJECTIVES,
    LossSettings,
    Objective,
    cispo_token_loss,
    grpo_token_loss,
    resolve_epsilon_high,
    resolve_loss_type,
)
from .ppo import explained_variance, ppo_policy_loss, value_loss
from .ratios import approx_kl, bounded_exp, clip_fraction, k3, sequence_log_ratio, sequence_token_log_ratio
from .soft_losses import sapo_token_loss, vespo_weights
from .token_choice import entropy_bonus, entropy_threshold, high_entropy_mask, off_policy_mask
from .turns import turn_advantages, turn_returns

__all__ = [
    "ADVANTAGES",
    "IMPORTANCE_SAMPLING_LEVELS",
    "LOSS_AGGREGATIONS",
    "LOSS_TYPES",
    "MULTI_OBJECTIVE_AGGREGATIONS",
    "OBJECTIVES",
    "ROLLOUT_CORRECTIONS",
    "SCALE_REWARDS",
    "Advantage",
    "LossInputs",
    "LossSettings",
    "Objective",
    "aggregate",
    "approx_kl",
    "bounded_exp",
    "cispo_token_loss",
    "clip_fraction",
    "completion_mask",
    "correction_weights",
    "decoupled_advantages",
    "entropy_bonus",
    "entropy_threshold",
    "explained_variance",
    "fill_masked",
    "gae",
    "generalized_jsd",
    "generalized_jsd_and_slope",
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
    "reinforce_baseline_advantages",
    "resolve_epsilon_high",
    "resolve_loss_type",
    "rloo_advantages",
    "sampling_mismatch",
    "sapo_token_loss",
    "sequence_log_ratio",
    "sequence_token_log_ratio",
    "spread_over_turns",
    "token_rewards",
    "total_rewards",
    "turn_advantages",
    "turn_numbers",
    "turn_returns",
    "value_loss",
    "vespo_weights",
    "zero_variance_groups",
]
