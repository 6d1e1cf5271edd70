# SPDX-License-Identifier: Apache-2.0
"""Answers to the probe prompts, side by side along the run, with what has changed from one to the next."""

import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from ..language import said
from .people import counted
from .record import RunRecord
from .rows import as_text, reward_of

MOST_ROUNDS = 12  # of answers that are shown next to each other
_WORDS = re.compile(r"\s+|\w+|[^\w\s]")


def probes_of(run: RunRecord) -> dict[str, Any]:
    """The probe prompts of a run for its page.

    Returns:
        `dict`: `steps` (of the rounds that are shown), `total` (how many rounds there are) and `prompts`, each with
        `prompt` and `answers`: `None` for a round without one, else `pieces` (texts, and whether each is new since
        the round before), `line` (reward and length) and `same` (whether nothing has changed).
    """
    by_probe: dict[int, dict[int, Mapping[str, Any]]] = {}
    for row in run.probes:
        by_probe.setdefault(row["probe"], {})[row["step"]] = row
    rounds = sorted({row["step"] for row in run.probes})
    width = max(1, -(-(len(rounds) - 1) // (MOST_ROUNDS - 1)))
    steps = sorted({*rounds[::width], *rounds[-1:]})
    return {
        "steps": steps,
        "total": len(rounds),
        "prompts": [
            {"prompt": as_text(next(iter(rows.values()))["prompt"]), "answers": _answers(rows, steps)}
            for _, rows in sorted(by_probe.items())
        ],
    }


def _answers(rows: Mapping[int, Mapping[str, Any]], steps: Sequence[int]) -> list[dict[str, Any] | None]:
    answers, before = [], None
    for step in steps:
        if step not in rows:
            answers.append(None)
            continue
        row, text = rows[step], as_text(rows[step]["completion"])
        parts = [*reward_of(row, with_signals=False), counted(row.get("tokens", "?"), "token")]
        parts += [said("cut off")] if row.get("finish_reason") == "length" else []
        answers.append({"pieces": changes(before, text), "line": said(", ").join(parts), "same": text == before})
        before = text
    return answers


def changes(before: str | None, after: str) -> list[tuple[str, bool]]:
    """The later text in pieces, each with whether it is new: words, spaces and signs that the earlier one has not."""
    if before is None:
        return [(after, False)]
    old, new = _WORDS.findall(before), _WORDS.findall(after)
    blocks = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    pieces = [("".join(new[start:end]), kind != "equal") for kind, _, _, start, end in blocks]
    return [(text, is_new) for text, is_new in pieces if text]
