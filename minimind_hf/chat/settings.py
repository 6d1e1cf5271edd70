# SPDX-License-Identifier: Apache-2.0
"""Settings of a chat: how answers are sampled and shown, and what bounds the calls of tools."""

from dataclasses import dataclass
from typing import Annotated, Any

from ..bounds import Bounds, Count, Positive, Share, check_settings
from ..flags import flag

HELP = "/clear starts over, /think and /nothink switch thinking on and off, /exit (or end of file) ends the chat"
NO_SWITCH = "the chat template of this model has no switch for thinking: whether it thinks depends on its training"
SAMPLING = {
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
}  # flags, also where greedy has no use of it

_OFF = "(default %(default)s: off)"
_Temperature = Annotated[float, Bounds(at_least=0, remedy="0 always takes the most likely token.")]
_TopP = Annotated[float, Bounds(above=0, at_most=1, remedy="1 switches it off.")]


@dataclass(frozen=True)
class AnswerSettings:
    """Settings of the sampling; each one is an argument of `generate` and a flag of `minimind-hf chat`.

    Args:
        max_new_tokens (`int`): Maximum tokens per answer.
        temperature (`float`), top_p (`float`), top_k (`int`), min_p (`float`), repetition_penalty (`float`): As
            in transformers. A temperature of 0 takes the most likely token.

    Raises:
        ValueError: If a value is out of bounds.
    """

    max_new_tokens: Count = flag(512, "maximum tokens per answer (default %(default)s)", metavar="N")
    temperature: _Temperature = flag(0.8, "0: always the most likely token (default %(default)s)", metavar="T")
    top_p: _TopP = flag(1.0, f"nucleus sampling {_OFF}", metavar="P")
    top_k: Annotated[int, Bounds(at_least=0)] = flag(0, f"only the K most likely tokens {_OFF}", metavar="K")
    min_p: Share = flag(0.0, f"only tokens at least this likely, relative to the most likely one {_OFF}", metavar="P")
    repetition_penalty: Positive = flag(1.0, f"above 1: less repetition {_OFF}", metavar="X")

    def __post_init__(self):
        check_settings(self)

    def generate_kwargs(self) -> dict[str, Any]:
        """Arguments of `generate`."""
        kwargs: dict[str, Any] = {"max_new_tokens": self.max_new_tokens, "do_sample": self.temperature > 0}
        if self.temperature > 0:
            kwargs |= {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k, "min_p": self.min_p}
        return kwargs | {"repetition_penalty": self.repetition_penalty}


@dataclass(frozen=True)
class ChatSettings(AnswerSettings):
    """Settings of the answers and of their display.

    Args:
        thinking (`bool`): Whether the chat template opens a thought.
        show_thinking (`bool`): Whether thoughts are shown.
    """

    thinking: bool = False
    show_thinking: bool = True


@dataclass(frozen=True)
class ToolSettings:
    """What bounds the calls of tools; each one is a flag of `minimind-hf chat`.

    Args:
        max_turns (`int`): Turns of the model for one answer: calls, and what it says at last.
        max_observation_length (`int`): Tokens after which the answer of a tool is cut, with a visible mark.
        tool_timeout (`float`): Seconds after which a call is given up.

    Raises:
        ValueError: If a value is out of bounds.
    """

    max_turns: Count = flag(16, "with tools: turns of the model for one answer (default %(default)s)", metavar="N")
    max_observation_length: Count = flag(
        2048, "tokens after which the answer of a tool is cut (default %(default)s)", metavar="N"
    )
    tool_timeout: Positive = flag(
        30.0, "seconds after which a call of a tool is given up (default %(default)s)", metavar="S"
    )

    def __post_init__(self):
        check_settings(self)
