# SPDX-License-Identifier: Apache-2.0
"""The completions that the page lets its reader search: all that were logged, or else the samples of every run.

Where they are too many for a page, whole logs are left out, evenly over the run, and the page says how many.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .episodes import call_text
from .packed import ROOM_FOR_ROWS, fitted
from .record import COMPLETIONS_FOLDER, RunRecord, read_lines


@dataclass(frozen=True)
class Rows:
    """Completions for the page.

    Args:
        data (`str`): The rows, packed; empty if there are none.
        count (`int`): How many.
        total (`int`): How many were logged.
        steps (`list[int]`): The optimizer steps that they were logged at.
        all_logged (`bool`): Whether they come from the log of all completions.
    """

    data: str
    count: int
    total: int
    steps: list[int]
    all_logged: bool


def rows_of(runs: Sequence[RunRecord], labels: Sequence[str], room: int = ROOM_FOR_ROWS) -> Rows:
    """The completions of one or several runs, as many as there is room for.

    Args:
        runs (`Sequence[RunRecord]`), labels (`Sequence[str]`): As in the charts.
        room (`int`): Bytes of the page that they may take.
    """
    logged = [_logged(run) for run in runs]
    found = [(label, run, rows) for label, run, rows in zip(labels, runs, logged, strict=True)]
    is_alone = len(runs) == 1
    every = [
        _row("" if is_alone else label, row) for label, run, rows in found for row in rows or [*run.early, *run.late]
    ]
    data, kept = fitted(every, room)
    steps = sorted({row["step"] for row in kept if isinstance(row["step"], int)})
    return Rows(data, len(kept), len(every), steps, any(logged))


def _logged(run: RunRecord) -> list[dict[str, Any]]:
    if run.folder is None:
        return []
    files = sorted((run.folder / COMPLETIONS_FOLDER).glob("completions_*.jsonl"))
    return [row for file in files for row in read_lines(file)]


def _row(label: str, row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "run": label,
        "step": row.get("step"),
        "prompt": as_text(row.get("prompt")),
        "completion": as_text(row.get("completion")),
        "reward": row.get("reward"),
        "signals": row.get("signals") or {},
        "tokens": row.get("tokens"),
        "cut": row.get("finish_reason") == "length",
    }


def as_text(value: Any) -> str:
    """A text as it is, messages with their roles and calls; of a single answer only its content."""
    if not isinstance(value, list):
        return str(value)
    if len(value) == 1 and value[0].get("role") == "assistant" and not value[0].get("tool_calls"):
        return str(value[0].get("content", ""))
    return "\n".join(_said(message) for message in value)


def _said(message: Mapping[str, Any]) -> str:
    calls = [call.get("function", call) for call in message.get("tool_calls") or ()]
    called = [f"→ {call_text(str(each.get('name')), each.get('arguments'))}" for each in calls]
    content = message.get("content")
    text = [] if calls and not content else [str(content)]
    return f"{message.get('role')}: " + "\n".join(text + called)
