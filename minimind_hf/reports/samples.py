# SPDX-License-Identifier: Apache-2.0
"""Completions of the first and of the last rollout side by side; episodes as conversations."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from ..language import said
from .episodes import conversation, failures_first, is_episode, pieces, told
from .people import counted, number
from .record import RunRecord
from .rows import as_text, reward_of


def early_and_late(run: RunRecord) -> dict[str, Any]:
    """The samples of a run for the page.

    Returns:
        `dict`: `pairs`, `different_prompts` (whether those of a pair are), `episodes` (whether there are any),
        `early_step`, `late_step`.
    """
    early, late = ([_sample(row) for row in _shown(rows)] for rows in (run.early, run.late))
    return {
        "pairs": list(zip_longest(early, late)),
        "different_prompts": any(one["prompt"] != other["prompt"] for one, other in zip(early, late, strict=False)),
        "episodes": any(map(is_episode, [*run.early, *run.late])),
        "early_step": _step(run.early),
        "late_step": _step(run.late),
    }


def _step(rows: Sequence[Mapping[str, Any]]) -> str:
    """The optimizer step that the rollout was drawn for, as logs count them."""
    return str(rows[0].get("step", "?")) if rows else "-"


def _shown(rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """The completions in the order of the page: as they were kept, episodes with failures first."""
    return failures_first(rows) if all(map(is_episode, rows)) else rows


def _sample(row: Mapping[str, Any]) -> dict[str, Any]:
    parts = [*reward_of(row), counted(row.get("tokens", "?"), "token")]
    sample: dict[str, Any] = {"prompt": as_text(row.get("prompt"))}
    if is_episode(row):
        parts.append(told(row))
        sample |= {"turns": [{**part, "reward": number(part.get("reward"))} for part in conversation(row)]}
        sample |= {"pieces": pieces(row)}
    else:
        sample |= {"completion": as_text(row.get("completion"))}
    if row.get("finish_reason") == "length":
        parts.append(said("cut off"))
    return {**sample, "line": " · ".join(parts)}
