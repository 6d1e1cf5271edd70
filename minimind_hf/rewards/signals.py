# SPDX-License-Identifier: Apache-2.0
"""What reward functions said of N completions: a number each, and of which turns it is the sum."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Signals:
    """The rewards of F functions for N completions.

    Args:
        values (`Tensor` of shape `(N, F)`): In float32; NaN where a function returned `None`. Of rewards by turn, the
            sum.
        by_turn (`dict[int, list[list[float] | None]]`): For each column with rewards by turn, those of every
            completion; `None` where there is one number for the whole completion, or none.
    """

    values: Tensor
    by_turn: dict[int, list[list[float] | None]] = field(default_factory=dict)

    def turn_totals(self, weights: Sequence[float], num_turns: Sequence[int]) -> list[list[float]]:
        """Adds up the weighted rewards of each turn; the reward of a whole completion counts for its last turn.

        Args:
            weights (`Sequence[float]`): One per column.
            num_turns (`Sequence[int]`): Turns of each completion; one without a turn has no totals.
        """
        totals = [[0.0] * count for count in num_turns]
        columns = list(zip(range(len(weights)), weights, self.values.t().tolist(), strict=True))
        for row, turns in enumerate(totals):
            for column, weight, values in columns:
                if not turns or not weight or math.isnan(values[row]):
                    continue
                parts = self.by_turn[column][row] if column in self.by_turn else None
                for turn, part in enumerate(parts or [0.0] * (len(turns) - 1) + [values[row]]):
                    turns[turn] += weight * part
        return totals


def joined_signals(columns: Sequence[Sequence[float | list[float]]], num_completions: int) -> Signals:
    """Makes [`Signals`] of what each function returned, with NaN in place of `None`."""
    by_turn = {}
    for number, column in enumerate(columns):
        parts = [reward if isinstance(reward, list) else None for reward in column]
        if any(part is not None for part in parts):
            by_turn[number] = parts
    values = [[math.fsum(reward) if isinstance(reward, list) else reward for reward in column] for column in columns]
    return Signals(torch.tensor(values, dtype=torch.float32).view(len(columns), num_completions).t(), by_turn)
