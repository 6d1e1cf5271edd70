# SPDX-License-Identifier: Apache-2.0
"""Fields of messages that a chat template leaves out: the policy never sees them, so this is said at the start."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from transformers.utils import logging

from .conversations import ParsedPrompt, PromptError

logger = logging.get_logger(__name__)

Place = tuple[str, str]
"""Role and name of a field; the tools of a prompt have the role "tools"."""

_ALWAYS = {"role", "content", "tool_call_id"}  # the last only refers to a call


def note_fields(found: dict[Place, tuple[int, ParsedPrompt]], parsed: ParsedPrompt, index: int) -> None:
    """Remembers a prompt for each field that no earlier prompt had.

    Args:
        found (`dict`): Row and prompt by field.
        parsed ([`ParsedPrompt`]): The prompt.
        index (`int`): Its row.
    """
    for place in _places(parsed):
        found.setdefault(place, (index, parsed))


def say_dropped(found: Mapping[Place, tuple[int, ParsedPrompt]], render: Callable[[ParsedPrompt, int], str]) -> None:
    """Warns of each field that makes no difference to the text.

    Args:
        found (`Mapping`): From [`note_fields`].
        render (`Callable`): Returns the text of a prompt and its row.
    """
    for (role, name), (index, parsed) in found.items():
        try:
            without = render(_without(parsed, role, name), index)
        except PromptError:  # the template needs it
            continue
        if without == render(parsed, index):
            what = "the tools of a prompt" if role == "tools" else f"the field {name!r} of messages of role {role!r}"
            logger.warning_once(
                f"row {index}: the chat template leaves out {what}, so the policy does not see it. Use a template "
                "that shows it, or put it into the content."
            )


def _places(parsed: ParsedPrompt) -> Iterator[Place]:
    if parsed.tools:
        yield "tools", "tools"
    for message in parsed.prompt if parsed.conversational else ():
        for name, value in message.items():
            if name not in _ALWAYS and value:
                yield message["role"], name


def _without(parsed: ParsedPrompt, role: str, name: str) -> ParsedPrompt:
    if role == "tools":
        return replace(parsed, tools=None)
    messages = [
        {key: value for key, value in message.items() if key != name or message["role"] != role}
        for message in parsed.prompt
    ]
    return replace(parsed, prompt=messages)
