# SPDX-License-Identifier: Apache-2.0
"""Episodes as people read them: which ones to show, and one as a conversation.

An episode is a row of samples/*.jsonl or completions/*.jsonl with the names that `trainer/logs/episodes.py` writes:

completion               its messages: turns of the policy with their `tool_calls`, and what was answered
turns, calls             how many
failed_calls             of the calls, by what was wrong
turn_rewards             one per turn, if turns have rewards
reached_max_turns        whether it was stopped
pieces                   [text, 1 or 0]: what the policy wrote, and what it read, token for token (samples only)
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..language import said
from .people import counted

_BEST = 2  # of the episodes that are shown, those with the highest reward
_LONGEST_BAR = 100  # percent


def is_episode(row: Mapping[str, Any]) -> bool:
    """Whether a row is an episode, and not a completion of one turn."""
    return "turns" in row and isinstance(row.get("completion"), list)


def failures_first(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Orders episodes by their reward, lowest first; among equals come those that were stopped, then failed calls."""
    return sorted(rows, key=_success)


def chosen(rows: Sequence[Mapping[str, Any]], count: int) -> list[int]:
    """Returns the places of the episodes to show: those with the lowest rewards, then the two with the highest."""
    order = sorted(range(len(rows)), key=lambda place: _success(rows[place]))
    return order if len(order) <= count else [*order[: count - _BEST], *order[-_BEST:]]


def _success(row: Mapping[str, Any]) -> tuple[float, bool, int]:
    reward = row.get("reward")
    reward = reward if isinstance(reward, int | float) else -math.inf
    was_stopped = row.get("reached_max_turns") or row.get("finish_reason") == "length"
    return reward, not was_stopped, -num_failed(row)


def num_failed(row: Mapping[str, Any]) -> int:
    """How many calls of an episode failed."""
    return sum((row.get("failed_calls") or {}).values())


def told(row: Mapping[str, Any]) -> str:
    """What is counted of an episode, on one line."""
    parts = [counted(row.get("turns", "?"), "turn")]
    if row.get("calls"):
        kinds = ", ".join(f"{count} {kind}" for kind, count in (row.get("failed_calls") or {}).items())
        calls = counted(row["calls"], "call")
        parts.append(said("{calls}, failed: {kinds}", calls=calls, kinds=kinds) if kinds else calls)
    if row.get("reached_max_turns"):
        parts.append(said("stopped at max_turns"))
    return " · ".join(parts)


def conversation(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of an episode for the page.

    Returns:
        `list[dict]`: `wrote` (`bool`, whether the policy did), `who` (`str`), `thought` and `text` (`str`), `calls`
        (`list[str]`), `failed` (`bool`, an answer that says what was wrong with a call), and for a turn that has a
        reward `reward` (`float`) and `bar` (`int`, its size in percent of the largest one).
    """
    rewards = [reward for reward in row.get("turn_rewards") or [] if isinstance(reward, int | float)]
    largest = max(map(abs, rewards), default=0.0)
    shown, turn = [], 0
    for message in row["completion"]:
        part = _part(message)
        if part["wrote"]:
            turn += 1
            part["who"] = said("turn {number}", number=turn)
            part |= _reward_of(row.get("turn_rewards") or [], turn, largest)
        shown.append(part)
    return shown


def _part(message: Mapping[str, Any]) -> dict[str, Any]:
    text, role = message.get("content"), str(message.get("role"))
    text = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False) if text else ""
    calls = [call.get("function", call) for call in message.get("tool_calls") or ()]
    return {
        "wrote": role == "assistant",
        "who": " ".join(filter(None, (role, message.get("name")))),
        "thought": message.get("reasoning_content") or "",
        "text": text,
        "calls": [call_text(str(each.get("name")), each.get("arguments")) for each in calls],
        "failed": role == "tool" and text.startswith("Error: "),
    }


def _reward_of(rewards: Sequence[float | None], turn: int, largest: float) -> dict[str, Any]:
    reward = rewards[turn - 1] if turn <= len(rewards) else None
    if not isinstance(reward, int | float):
        return {}
    return {"reward": reward, "bar": round(_LONGEST_BAR * abs(reward) / largest) if largest else 0}


def pieces(row: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """The tokens of an episode as text, and for each piece whether the policy wrote it."""
    return [(str(text), bool(wrote)) for text, wrote in row.get("pieces") or []]


def call_text(name: str, arguments: Any) -> str:
    """A call on one line, as it would be written in Python."""
    if not isinstance(arguments, Mapping):
        return f"{name}({'' if arguments is None else arguments})"
    given = (f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in arguments.items())
    return f"{name}({', '.join(given)})"
