# SPDX-License-Identifier: Apache-2.0
"""How often each prompt was solved, and how likely it is drawn again.

A prompt that all completions solve, or none, teaches nothing. With `s` of `t` completions solved, the posterior mean
of its success rate under a uniform prior is `p = (s + 1) / (t + 2)`. When its turn comes it is kept with probability
`4 p (1 - p)`, which is proportional to the variance of the reward, but never less than a floor, so that it is asked
again when the policy has changed.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

FILE = "prompt_memory.json"
SOLVED, HOPELESS = 0.9, 0.1  # posterior means


class PromptMemory:
    """The memory of a run; equal in all processes.

    Args:
        floor (`float`): Least probability with which a prompt is kept.
    """

    def __init__(self, floor: float):
        self._floor = floor
        self._counts: dict[int, list[int]] = {}  # of a row of the data set: completions that solved it, completions

    def add(self, rows: Iterable[tuple[int, int, int]]) -> None:
        """Takes what came of prompts: `(row, completions that solved it, completions)`."""
        for row, solved, tried in rows:
            counts = self._counts.setdefault(row, [0, 0])
            counts[0] += solved
            counts[1] += tried

    def mean(self, row: int) -> float:
        """The posterior mean of the success rate of a prompt."""
        solved, tried = self._counts.get(row, (0, 0))
        return (solved + 1) / (tried + 2)

    def probability(self, row: int) -> float:
        """The probability with which a prompt is kept when its turn comes."""
        mean = self.mean(row)
        return max(self._floor, 4 * mean * (1 - mean))

    def keeps(self, row: int, seed: tuple[int, ...]) -> bool:
        """Whether a prompt is kept: a pure function of the memory, the row and the seed."""
        return np.random.default_rng([*seed, row]).random() < self.probability(row)

    def shares(self) -> tuple[float, float]:
        """The shares of remembered prompts that are solved and hopeless."""
        means = np.array([self.mean(row) for row in self._counts] or [0.5])
        return float((means > SOLVED).mean()), float((means < HOPELESS).mean())

    def save(self, checkpoint: str) -> None:
        """Puts the memory into a checkpoint that is being made; one process does."""
        (Path(checkpoint) / FILE).write_text(json.dumps(self._counts), encoding="utf-8")

    def load(self, checkpoint: str) -> None:
        """Takes the memory of a checkpoint; one without a memory leaves it empty."""
        file = Path(checkpoint) / FILE
        if file.exists():
            stored = json.loads(file.read_text(encoding="utf-8"))
            self._counts = {int(row): counts for row, counts in stored.items()}
