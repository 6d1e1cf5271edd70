# SPDX-License-Identifier: Apache-2.0
"""Histograms of the rewards and lengths of all completions between two logs, for the report."""

import json
from itertools import chain
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from ...reports.histograms import histogram
from ...reports.record import read_lines, write_lines
from ..experience.experience import Experience


class DistributionLog:
    """Collects the rewards and lengths of rollouts; `flush` writes their histograms.

    Args:
        path (`Path`): A file with one line per log, written by the main process.
    """

    def __init__(self, path: Path):
        self.path = path
        self._values: list[tuple[Tensor, Tensor]] = []  # rewards and lengths of rollouts, read when they are written

    def begin(self, step: int) -> None:
        """Continues after `step`: later lines are those of a run that is resumed from an earlier checkpoint."""
        kept = [row for row in read_lines(self.path, grows=True) if row["step"] <= step] if step else []
        if kept:
            write_lines(self.path, kept)
        else:
            self.path.unlink(missing_ok=True)

    def add(self, experience: Experience) -> None:
        counted = experience.counted
        self._values.append((counted.rewards, counted.lengths))

    def flush(self, accelerator: Accelerator, step: int) -> None:
        """Writes in the main process; every process calls it."""
        own = [zip(rewards.tolist(), lengths.tolist(), strict=True) for rewards, lengths in self._values]
        values = gather_object(list(chain.from_iterable(own)))
        self._values = []
        if not values or not accelerator.is_main_process:
            return
        rewards, tokens = zip(*values, strict=True)
        row = {"step": step, "reward": histogram(rewards), "tokens": histogram(tokens)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
