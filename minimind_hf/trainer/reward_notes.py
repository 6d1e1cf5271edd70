# SPDX-License-Identifier: Apache-2.0
"""What reward functions say beside their rewards, through trl's `log_metric` and `log_extra`."""

from typing import Any

from ..rewards import RewardError
from .metrics import Metrics


class RewardNotes:
    """Given to the reward functions of one rollout.

    Args:
        num_completions (`int`): Completions of the rollout in this process.
        metrics ([`Metrics`]): Gets the metrics.
    """

    def __init__(self, num_completions: int, metrics: Metrics):
        self.num_completions = num_completions
        self.columns: dict[str, list] = {}
        self._metrics = metrics

    def log_metric(self, name: str, value: float) -> None:
        """Adds a number to the log, which gets the mean of all calls since the last log, over all processes."""
        self._metrics.add_mean(name, float(value), 1)

    def log_extra(self, column: str, values: list[Any]) -> None:
        """Adds a column to the jsonl of completions (see log_completions), one value a completion.

        Raises:
            RewardError: If there are more or fewer values than completions.
        """
        if len(values) != self.num_completions:
            raise RewardError(
                f"log_extra({column!r}, ...) got {len(values)} values for {self.num_completions} completions. Give "
                "one for each."
            )
        self.columns[column] = list(values)
