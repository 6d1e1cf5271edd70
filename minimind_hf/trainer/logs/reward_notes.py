# SPDX-License-Identifier: Apache-2.0
"""Metrics and columns logged by reward functions, through trl's `log_metric` and `log_extra`.

Names that the trainer uses for its own metrics are refused; docs/metrics.md lists them.
"""

import re
from collections.abc import Sequence
from typing import Any

from ...rewards import RewardError
from ..metrics import Metrics


class RewardNotes:
    """Collects metrics and columns from the reward functions of one rollout.

    Args:
        num_completions (`int`): Completions of the rollout in this process.
        metrics ([`Metrics`]): Receives the metrics.
        signal_names (`Sequence[str]`, *optional*): Names of the reward functions, which are columns of the table.
    """

    def __init__(self, num_completions: int, metrics: Metrics, signal_names: Sequence[str] = ()):
        self._own_columns = {name.casefold() for name in (*ROW_NAMES, *signal_names)}
        self.num_completions = num_completions
        self.columns: dict[str, list] = {}
        self._metrics = metrics

    def log_metric(self, name: str, value: float) -> None:
        """Adds a number to a metric. The log shows the mean of all calls since the last log, over all processes.

        Raises:
            RewardError: If the trainer itself uses this name.
        """
        if is_own_metric(name):
            raise RewardError(
                f"log_metric({name!r}, ...) uses a name under which the trainer logs its own metric. Choose "
                f"another name, for example {'my_' + name!r}; docs/metrics.md lists the names that are taken."
            )
        self._metrics.add_mean(name, float(value), 1)

    def log_extra(self, column: str, values: list[Any]) -> None:
        """Adds a column to the jsonl of completions (see log_completions), with one value per completion.

        Raises:
            RewardError: If the numbers of values and completions differ, or the table already has this column.
        """
        if column.casefold() in self._own_columns:
            raise RewardError(
                f"log_extra({column!r}, ...) uses the name of a column that the table of completions already has. "
                f"Choose another name, for example {'my_' + column!r}; taken are {sorted(self._own_columns)}."
            )
        if len(values) != self.num_completions:
            raise RewardError(
                f"log_extra({column!r}, ...) got {len(values)} values for {self.num_completions} completions. Pass "
                "one value per completion."
            )
        self.columns[column] = list(values)


_OWN = """
reward reward_std reward_min reward_max frac_reward_zero_std advantages/mean advantages/std
completions/mean_length completions/min_length completions/max_length completions/clipped_ratio completions/repetition
completions/thinking_closed completions/count completions/tokens completions/on_policy entropy divergence
prompts/drawn prompts/without_variance prompts/filled prompts/reward prompts/skipped prompts/solved prompts/hopeless
sampling/audit seconds/audit seconds/proof
episodes/turns episodes/reached_max_turns episodes/cut_observations episodes/observation_share
tools/call_frequency tools/failure_frequency tools/seconds
rewards/turn_1 rewards/turn_2 rewards/turn_3 rewards/turn_4 rewards/turn_5 rewards/turn_6 rewards/turn_7 rewards/turn_8
tools/failed/unparsed tools/failed/unknown tools/failed/arguments tools/failed/raised tools/failed/timeout
sampling/staleness sampling/cached_share sampling/k3 rollout/acceptance rollout/tokens_per_pass
sampling/sampling_logp_difference/mean sampling/sampling_logp_difference/max
sampling/importance_sampling_ratio/mean sampling/importance_sampling_ratio/min sampling/importance_sampling_ratio/max
loss policy_loss entropy_coef aux_loss kl_ref ratio_mean approx_kl clip_ratio/low_mean clip_ratio/high_mean
clip_ratio/region_mean grad_norm learning_rate epoch step
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
    """Whether the trainer uses this name for a metric; evaluation adds the prefix `eval_`."""
    name = name.removeprefix("eval_")
    return name in OWN_NAMES or _SIGNALS.fullmatch(name) is not None
