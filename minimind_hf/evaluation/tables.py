# SPDX-License-Identifier: Apache-2.0
"""Estimates of one or more models side by side: as numbers for a file, and as a table for a terminal."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from .answers import Answers
from .estimates import Estimate, estimate

SHOWN_CHARACTERS = 240  # of a text in the table of answers that changed


def summary(answers: Sequence[Answers]) -> list[dict[str, Any]]:
    """Returns the estimates of every signal for each model, and of the differences from the first model.

    Differences are taken prompt by prompt, which removes the difficulty of the prompts. So a difference can be clear
    even if the intervals of the models overlap. It is where its own interval leaves out 0.
    """
    rows = []
    for name in answers[0].signals:
        row: dict[str, Any] = {"signal": name}
        first = answers[0].signals[name]
        row["models"] = {one.name: _as_dict(estimate(one.signals[name])) for one in answers}
        row["differences"] = {}
        for one in answers[1:]:
            change = difference(first, one.signals[name])
            row["differences"][one.name] = None if change is None else _as_dict(change) | {"clear": change.is_clear}
        rows.append(row)
    return rows


def difference(before: Sequence[float], after: Sequence[float]) -> Estimate | None:
    """The estimate of what changed, prompt by prompt."""
    return estimate([b - a for a, b in zip(before, after, strict=True)])


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
        caption += (
            f"; differences from {first.name} are taken prompt by prompt, * is clear (its interval leaves out 0)"
        )
    table.caption = caption
    for name, start in first.signals.items():
        for one in answers:
            cells = [name if one is first else "", one.name, str(estimate(one.signals[name]) or "-")]
            if len(answers) > 1:
                cells.append("" if one is first else _difference_cell(difference(start, one.signals[name])))
            table.add_row(*cells, end_section=one is answers[-1])
    return table


def _difference_cell(change: Estimate | None) -> str:
    if change is None:
        return ""
    return f"{change.mean:+.3f} ± {(change.high - change.low) / 2:.3f}{' *' if change.is_clear else '  '}"


def changes_table(before: Answers, after: Answers, most: int) -> Table | None:
    """Returns the answers whose reward changed most, as a table: up to `most` that got better, and as many worse.

    Args:
        before ([`Answers`]), after ([`Answers`]): Of two models, to the same prompts.
        most (`int`): Rows of either kind. Of a prompt with several samples, the one that changed most is shown.

    Returns:
        `rich.table.Table`, or `None` if no reward changed.
    """
    rows = changed_answers(before, after)
    better, worse = ([pair for pair in rows if sign * _gain(pair) > 0] for sign in (1, -1))
    shown = better[:most] + worse[max(len(worse) - most, 0) :]
    if not shown:
        return None
    title = f"answers that changed: {len(better)} prompts better, {len(worse)} worse"
    table = Table(title=title, show_lines=True)
    for column in ("prompt", before.name, after.name):
        table.add_column(column, overflow="fold", ratio=1)
    table.add_column("reward", no_wrap=True)
    for old, new in shown:
        texts = [shortened(said(old["prompt"])), *(shortened(said(each["completion"])) for each in (old, new))]
        table.add_row(*map(Text, texts), f"{old['reward']:.3g} → {new['reward']:.3g}")
    return table


def changed_answers(before: Answers, after: Answers) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The pair of answers to each prompt whose reward changed most, from the greatest gain to the greatest loss."""
    pairs: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
    for pair in zip(before.completions, after.completions, strict=True):
        index = pair[0]["index"]
        known = None not in (pair[0]["reward"], pair[1]["reward"])
        if known and (index not in pairs or abs(_gain(pair)) > abs(_gain(pairs[index]))):
            pairs[index] = pair
    return sorted(pairs.values(), key=_gain, reverse=True)


def _gain(pair: tuple[dict[str, Any], dict[str, Any]]) -> float:
    return pair[1]["reward"] - pair[0]["reward"]


def said(text: str | Sequence[dict[str, Any]]) -> str:
    """A text, or the last message of a conversation."""
    return text if isinstance(text, str) else str(text[-1].get("content") or "") if text else ""


def shortened(text: str, most: int = SHOWN_CHARACTERS) -> str:
    """A text on a few lines, its middle left out if it is long: the end holds the answer."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"
