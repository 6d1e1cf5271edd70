# SPDX-License-Identifier: Apache-2.0
"""What stands between reward functions and a trainer: the columns they need, sums that are finite, and what they say
beside their rewards through trl's `log_metric` and `log_extra`."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..data import PromptDataset
from ..rewards import RewardError, RewardScorer
from ..rewards.columns import TRAINER_ARGUMENTS
from .metric_names import ROW_NAMES, is_own_metric
from .metrics import Metrics


class RewardNotes:
    """Given to the reward functions of one rollout.

    Args:
        num_completions (`int`): Completions of the rollout in this process.
        metrics ([`Metrics`]): Gets the metrics.
        signal_names (`Sequence[str]`, *optional*): Of the reward functions: columns of the table of completions.
    """

    def __init__(self, num_completions: int, metrics: Metrics, signal_names: Sequence[str] = ()):
        self._own_columns = {name.casefold() for name in (*ROW_NAMES, *signal_names)}
        self.num_completions = num_completions
        self.columns: dict[str, list] = {}
        self._metrics = metrics

    def log_metric(self, name: str, value: float) -> None:
        """Adds a number to the log, which gets the mean of all calls since the last log, over all processes.

        Raises:
            RewardError: If the trainer logs under this name itself.
        """
        if is_own_metric(name):
            raise RewardError(
                f"log_metric({name!r}, ...) takes a name under which the trainer logs a number of its own. Choose "
                f"another, for example {'my_' + name!r}; docs/metrics.md lists those that are taken."
            )
        self._metrics.add_mean(name, float(value), 1)

    def log_extra(self, column: str, values: list[Any]) -> None:
        """Adds a column to the jsonl of completions (see log_completions), one value a completion.

        Raises:
            RewardError: If there are more or fewer values than completions, or the table has such a column itself.
        """
        if column.casefold() in self._own_columns:
            raise RewardError(
                f"log_extra({column!r}, ...) takes the name of a column that the table of completions has itself. "
                f"Choose another, for example {'my_' + column!r}; taken are {sorted(self._own_columns)}."
            )
        if len(values) != self.num_completions:
            raise RewardError(
                f"log_extra({column!r}, ...) got {len(values)} values for {self.num_completions} completions. Give "
                "one for each."
            )
        self.columns[column] = list(values)


def check_reward_columns(scorer: RewardScorer, *prompts: PromptDataset | dict[str, PromptDataset] | None) -> None:
    """Refuses prompts that lack a column which a reward function needs.

    Raises:
        RewardError: Naming function and column.
    """
    for some in prompts:
        for part in some.values() if isinstance(some, dict) else [some]:
            if part is not None:
                scorer.check_columns(part.columns, TRAINER_ARGUMENTS)


LARGEST_SQUARED = 1e18  # the square of a reward, summed over a batch, is to be finite in float32


def check_totals(rewards: Tensor, signals: Tensor, scorer: RewardScorer, squared: bool = False) -> None:
    """Refuses sums of finite rewards that are not finite themselves, or whose squares are not.

    Args:
        rewards (`Tensor` of shape `(N,)`): The weighted sums.
        signals (`Tensor` of shape `(N, F)`): What was summed; NaN is no signal.
        squared (`bool`): Whether the loss takes rewards as they are, so that its squares grow with them.

    Raises:
        RewardError: Naming the sample and its rewards.
    """
    sizes = signals.double().nan_to_num(0.0).abs() @ scorer.weights.to(signals.device).double().abs()
    wrong = sizes > (LARGEST_SQUARED if squared else torch.finfo(torch.float32).max)
    if wrong.any():
        sample = int(wrong.nonzero()[0])
        parts = dict(zip(scorer.names, signals[sample].tolist(), strict=True))
        which = f"whose square in the loss (limit {LARGEST_SQUARED:.0e})" if squared else "which"
        raise RewardError(
            f"The rewards of sample {sample} are {parts}; weighted by {scorer.weights.tolist()} their sum is "
            f"{rewards[sample].item()}, {which} float32 cannot hold. Return smaller rewards, or lower reward_weights."
        )
