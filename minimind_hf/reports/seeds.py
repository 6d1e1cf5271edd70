# SPDX-License-Identifier: Apache-2.0
"""Runs that differ in nothing but their seeds: which they are, and a mean over them with its interval."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist, fmean, stdev
from typing import Any

from ..language import said
from .record import RunRecord

CONFIDENCE = 0.95
# Student's t, two-sided at 95 %, for 1 to 4 degrees of freedom, where the expansion below is off by more than 0.1 %
_T = (12.706205, 4.302653, 3.182446, 2.776445)
_SEEDS = ("seed", "data_seed")


@dataclass(frozen=True)
class Mean:
    """A mean over runs, and half the width of its 95 % interval: infinite for a single run."""

    value: float
    half: float
    runs: int

    @property
    def low(self) -> float:
        return self.value - self.half

    @property
    def high(self) -> float:
        return self.value + self.half


def mean_over_runs(values: Sequence[float]) -> Mean:
    """The mean of one number per run, with Student's interval, since runs are few.

    Raises:
        ValueError: If there is no value.
    """
    if not values:
        raise ValueError("There is no value to take the mean of. Give one number per run.")
    half = students_t(len(values) - 1) * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return Mean(fmean(values), half, len(values))


def students_t(freedom: int) -> float:
    """The two-sided 95 % quantile of Student's t (Abramowitz and Stegun, 26.7.5, from 5 degrees of freedom on)."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))


def by_settings(runs: Sequence[RunRecord]) -> list[list[int]]:
    """The places of the runs, those with the same algorithm and settings together."""
    found: dict[str, list[int]] = {}
    for place, run in enumerate(runs):
        settings = {name: value for name, value in compared_settings(run).items() if name not in _SEEDS}
        # Without its settings, a run is like no other
        key = json.dumps([run.algorithm, settings or place], sort_keys=True, default=str)
        found.setdefault(key, []).append(place)
    return list(found.values())


def compared_settings(run: RunRecord) -> dict[str, Any]:
    """The settings; a model that the run made in its own folder to start from is the same in every run."""
    settings, folder = dict(run.settings), run.about.get("output_dir")
    if folder and Path(str(settings.get("model"))).parent == Path(folder):
        settings["model"] = said("{name}, in its own folder", name=Path(settings["model"]).name)
    return settings


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names whose values are not the same everywhere."""
    names = dict.fromkeys(name for each in settings for name in each)
    return [name for name in names if len({json.dumps(each.get(name), default=str) for each in settings}) > 1]
