# SPDX-License-Identifier: Apache-2.0
"""Estimates of one or more models side by side: as numbers for a file, and as a table for a terminal."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from .answers import Answers
from .estimates import Estimate, estimate


def summary(answers: Sequence[Answers]) -> list[dict[str, Any]]:
    """Returns the estimates of every signal for each model, and of the differences from the first model.

    Differences are taken prompt by prompt, which removes the difficulty of the prompts. So a difference can be clear
    even if the intervals of the models overlap.
    """
    rows = []
    for name in answers[0].signals:
        row: dict[str, Any] = {"signal": name}
        first = answers[0].signals[name]
        row["models"] = {one.name: _as_dict(estimate(one.signals[name])) for one in answers}
        row["differences"] = {
            one.name: _as_dict(estimate([b - a for a, b in zip(first, one.signals[name], strict=True)]))
            for one in answers[1:]
        }
        rows.append(row)
    return rows


def _as_dict(value: Estimate | None) -> dict[str, float] | None:
    if value is None:
        return None
    return {name: round(number, 6) if math.isfinite(number) else None for name, number in asdict(value).items()}


def as_table(answers: Sequence[Answers], title: str) -> Table:
    """Returns the estimates as a table, a row per signal and model: `mean ± half the interval`, and the difference."""
    first = answers[0]
    caption = "mean ± 95 % confidence"
    table = Table(title=title)
    table.add_column("signal", no_wrap=True)
    table.add_column("model", overflow="fold")
    table.add_column("mean", justify="right", no_wrap=True)
    if len(answers) > 1:
        table.add_column("difference", justify="right", no_wrap=True)
        caption += f"; differences from {first.name} are taken prompt by prompt"
    table.caption = caption
    for name, start in first.signals.items():
        for one in answers:
            cells = [name if one is first else "", one.name, str(estimate(one.signals[name]) or "-")]
            change = None if one is first else estimate([b - a for a, b in zip(start, one.signals[name], strict=True)])
            if len(answers) > 1:
                cells.append(f"{change.mean:+.3f} ± {(change.high - change.low) / 2:.3f}" if change else "")
            table.add_row(*cells, end_section=one is answers[-1])
    return table
