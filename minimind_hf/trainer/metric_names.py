# SPDX-License-Identifier: Apache-2.0
"""The names under which a trainer logs itself, which no reward function may take. docs/metrics.md defines them."""

import re

_OWN = """
reward reward_std reward_min reward_max frac_reward_zero_std advantages/mean advantages/std
completions/mean_length completions/min_length completions/max_length completions/clipped_ratio completions/repetition
completions/thinking_closed entropy
sampling/staleness sampling/sampling_logp_difference/mean sampling/sampling_logp_difference/max sampling/k3
sampling/importance_sampling_ratio/mean sampling/importance_sampling_ratio/min sampling/importance_sampling_ratio/max
loss policy_loss aux_loss kl_ref ratio_mean approx_kl clip_ratio/low_mean clip_ratio/high_mean clip_ratio/region_mean
grad_norm learning_rate epoch step
critic_loss clip_fraction value_clip_fraction explained_variance values/mean values/std returns/mean returns/std
early_stopped critic_grad_norm critic_learning_rate
seconds/rollout seconds/scoring seconds/reference seconds/update seconds/values seconds/correction tokens_per_second
train_runtime train_samples_per_second train_steps_per_second train_loss total_flos
runtime samples_per_second steps_per_second accuracy_before accuracy_after
"""
OWN_NAMES = frozenset(_OWN.split())
_SIGNALS = re.compile(r"rewards/[^/]+/(mean|std)")
ROW_NAMES = ("step", "prompt", "completion", "signals", "reward", "advantage", "tokens", "finish_reason")


def is_own_metric(name: str) -> bool:
    """Whether a trainer logs under this name, in evaluation with `eval_` before it."""
    name = name.removeprefix("eval_")
    return name in OWN_NAMES or _SIGNALS.fullmatch(name) is not None
