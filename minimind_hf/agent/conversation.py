# SPDX-License-Identifier: Apache-2.0
"""Environments that answer in words: games, users, feedback. The policy needs no tools to speak with them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from .errors import AgentError

ANSWERING_ROLES = ("user", "system", "tool")


@dataclass
class Reply:
    """What an environment answers to a turn.

    Args:
        messages (`str` or `list[dict]`, *optional*): What the policy reads next: a text of the user, or messages. May
            be left out if the episode is over.
        reward (`float`, *optional*): Reward of the turn that was answered.
        done (`bool`): Whether the episode is over.
    """

    messages: str | Sequence[dict] | None = None
    reward: float | None = None
    done: bool = False


class Turn(str):
    """A turn of the policy, as the text that an environment answers: without its thought.

    Attributes:
        message (`dict`): The whole message: `content`, and `reasoning_content` if there was a thought.
        number (`int`): 0 for the first turn of the episode.
    """

    message: dict[str, Any]
    number: int

    def __new__(cls, message: dict[str, Any], number: int) -> "Turn":
        turn = super().__new__(cls, message.get("content") or "")
        turn.message, turn.number = message, number
        return turn


class Conversation(ABC):
    """An environment that answers turns: a subclass, or any class with `reset` and `respond`. Both may be async.

    A class may also have `get_reward()`, which adds one more reward at the end of the episode.
    """

    @abstractmethod
    def reset(self, **row: Any) -> str | Sequence[dict] | None:
        """Begins an episode.

        Args:
            row: The columns of the row, and `seed` (equal for all episodes of a group), as far as the method takes
                them.

        Returns:
            `str`: appended to the last message of the user; `list[dict]`: messages appended to the prompt; or `None`.
        """

    @abstractmethod
    def respond(self, turn: Turn) -> Reply:
        """Answers a turn of the policy."""


def check_reply(reply: Any, where: str) -> Reply:
    """Refuses what `respond` must not return.

    Args:
        reply (`Any`): What it returned.
        where (`str`): Class, turn and row, for errors.

    Raises:
        AgentError: With the value and what is expected.
    """
    if not isinstance(reply, Reply):
        raise AgentError(
            f"{where} returned {reply!r:.80}, a {type(reply).__name__}, expected minimind_hf.Reply(messages, reward, "
            "done)."
        )
    if reply.reward is not None and not (isinstance(reply.reward, Real) and math.isfinite(reply.reward)):
        raise AgentError(f"{where} gave the reward {reply.reward!r:.80}, expected a finite number or None.")
    if not reply.messages and not reply.done:
        raise AgentError(
            f"{where} has no messages though the episode goes on. Give the policy something to answer, or done=True."
        )
    reply.messages = as_messages(reply.messages, where)
    return reply


def as_messages(value: Any, where: str) -> list[dict]:
    """Returns messages for the policy from a text of the user, messages, or nothing.

    Raises:
        AgentError: If it is something else, or holds a turn of the assistant, which is the policy's to take.
    """
    if not value:
        return []
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    for message in value if isinstance(value, Sequence) else [value]:
        is_message = isinstance(message, dict) and isinstance(message.get("content"), str)
        if not is_message or message.get("role") not in ANSWERING_ROLES:
            raise AgentError(
                f"{where} gave the message {message!r:.80}, expected a text, or messages "
                f'{{"role": ..., "content": "..."}} with a role of {list(ANSWERING_ROLES)}.'
            )
    return list(value)
