# SPDX-License-Identifier: Apache-2.0
"""Histograms of rewards and lengths: how they are counted while a run goes on, and as charts of its page."""

import math
from collections.abc import Sequence
from typing import Any

from ..language import said
from .people import number
from .record import RunRecord

BINS = 20
_MOST_STEPS = 200  # on a page
TITLES = {"reward": ("Rewards of completions", "reward"), "tokens": ("Lengths of completions", "tokens")}


def histogram(values: Sequence[float | None]) -> dict[str, Any] | None:
    """Counts values in bins of equal width.

    Args:
        values (`Sequence[float]`, *optional* each): `None` and NaN are left out.

    Returns:
        `dict`: `low`, `high` (the outer edges) and `counts`; `None` if there is no value.
    """
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return None
    low, high = min(known), max(known)
    if low == high:
        return {"low": low - 0.5, "high": high + 0.5, "counts": [len(known)]}
    counts = [0] * BINS
    for value in known:
        counts[min(BINS - 1, int((value - low) / (high - low) * BINS))] += 1
    return {"low": low, "high": high, "counts": counts}


def histograms(run: RunRecord) -> list[dict[str, Any]]:
    """The histograms of a run as charts of its page, for the first log, the last one and some in between."""
    charts = []
    for name, (title, unit) in TITLES.items():
        found = [{"step": row["step"], **row[name]} for row in run.distributions if row.get(name)]
        if not found:
            continue
        width = -(-len(found) // _MOST_STEPS)
        kept = [found[0], *found[1:-1][::width], found[-1]] if len(found) > 1 else found
        charts.append(
            {
                "title": said(title),
                "note": said("At the chosen step; the outline is the first log.") if len(kept) > 1 else "",
                "unit": said(unit),
                "kind": "bars",
                "spoken": _spoken(title, kept[0], kept[-1]),
                "main": True,
                "histograms": kept,
            }
        )
    return charts


def _spoken(title: str, first: dict[str, Any], last: dict[str, Any]) -> str:
    ranges = (said("{low} to {high}", low=number(each["low"]), high=number(each["high"])) for each in (first, last))
    names = dict(zip(("first", "last"), ranges, strict=True)) | {"start": first["step"], "end": last["step"]}
    return said("{title}: from {first} at step {start}, to {last} at step {end}.", title=said(title), **names)
