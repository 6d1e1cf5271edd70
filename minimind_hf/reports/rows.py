# SPDX-License-Identifier: Apache-2.0
"""The completions that the page lets its reader search: all that were logged, or else the samples of every run.

Where they are too many for a page, whole logs are left out, evenly over the run, and the page says how many.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..language import said
from .episodes import call_text
from .packed import ROOM_FOR_ROWS, fitted
from .people import number
from .record import COMPLETIONS_FOLDER, RunRecord, read_lines

MOST_BYTES = 16_000_000  # of the files of completions of all runs that are read; packed they are far smaller


@dataclass(frozen=True)
class Rows:
    """Completions for the page.

    Args:
        data (`str`): The rows, packed; empty if there are none.
        count (`int`): How many.
        steps (`list[int]`): The optimizer steps that they were logged at.
        logs (`int`): At how many steps there are completions, on the page or not.
        all_logged (`bool`): Whether they come from the log of all completions.
    """

    data: str
    count: int
    steps: list[int]
    logs: int
    all_logged: bool


def rows_of(runs: Sequence[RunRecord], labels: Sequence[str], room: int = ROOM_FOR_ROWS) -> Rows:
    """The completions of one or several runs, as many as there is room for.

    Args:
        runs (`Sequence[RunRecord]`), labels (`Sequence[str]`): As in the charts.
        room (`int`): Bytes of the page that they may take.
    """
    files = [_files(run) for run in runs]
    is_alone, logged = len(runs) == 1, any(files)
    every, logs = [], set()
    for run, label, own in zip(runs, labels, files, strict=True):
        rows = [row for file in _few(own, MOST_BYTES // len(runs)) for row in read_lines(file)]
        rows = rows or [*run.early, *run.late]
        every += [_row("" if is_alone else label, row) for row in rows]
        logs |= {int(file.stem.rpartition("_")[2]) for file in own} or {row.get("step") for row in rows}
    data, kept = fitted(every, room)
    steps = sorted({row["step"] for row in kept if isinstance(row["step"], int)})
    return Rows(data, len(kept), steps, len(logs), logged)


def _files(run: RunRecord) -> list[Path]:
    """The files of logged completions, one for each log, in order."""
    if run.folder is None:
        return []
    return sorted((run.folder / COMPLETIONS_FOLDER).glob("completions_[0-9]*.jsonl"))


def _few(files: Sequence[Path], most: int) -> list[Path]:
    """Files of at most so many bytes together, evenly over the run; the last one stays."""
    sizes = {file: file.stat().st_size for file in files}
    every = max(1, -(-sum(sizes.values()) // most))
    while every < len(files) and sum(sizes[file] for file in files[::-1][::every]) > most:
        every += 1
    return files[::-1][::every][::-1]


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


def reward_of(row: Mapping[str, Any], with_signals: bool = True) -> list[str]:
    """The reward of a completion as a part of a line about it; none if nothing gave rewards."""
    signals = row.get("signals") or {}
    if row.get("reward") is None and not signals:
        return []
    told = ", ".join(f"{name} {number(value)}" for name, value in signals.items()) if with_signals else ""
    text = "reward {reward} ({signals})" if told else "reward {reward}"
    return [said(text, reward=number(row.get("reward")), signals=told)]


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
