# SPDX-License-Identifier: Apache-2.0
"""A turn of the policy as a message: its thought, its text and its calls of tools.

The form `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (MiniMind, Qwen, Hermes) is read here; tags inside
a JSON string are text, and what stands in a thought is no call. A tokenizer with a `response_template`, its own or the
one that trl has for its chat template, is read with that.
"""

import json
import math
import re
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase
from trl.chat_template_utils import add_response_schema

THINK, END_THINK = "<think>", "</think>"
CALL, END_CALL = "<tool_call>", "</tool_call>"
_OPENING = re.compile(f"{re.escape(THINK)}|{re.escape(CALL)}")
_SPACE = re.compile(r"\s*")
_FORM = f'{CALL}{{"name": "...", "arguments": {{...}}}}{END_CALL}'
_PROBE = "probe_of_a_name"


@dataclass
class AssistantTurn:
    """What the policy said in one turn.

    Args:
        message (`dict`):
            `role`, `content`, and `reasoning_content` and `tool_calls` if there are some; the calls in OpenAI's form
            `{"type": "function", "function": {"name": str, "arguments": dict}}`.
        faults (`list[str]`): A sentence for the model about each call that cannot be read.
    """

    message: dict[str, Any]
    faults: list[str] = field(default_factory=list)

    @property
    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        """Name and arguments of each call."""
        functions = [call["function"] for call in self.message.get("tool_calls", ())]
        return [(function["name"], function["arguments"]) for function in functions]


class TurnReader:
    """Reads turns in the form that a tokenizer's chat template teaches. Chosen once.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The policy's tokenizer.
        eos_token_ids (`Sequence[int]`): What ends a turn.
        tools (`bool`, *optional*, defaults to `True`):
            Whether there are tools. Without them, a call is text like any other.

    Raises:
        ValueError: If the form of the template's calls is not known.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, eos_token_ids: tuple[int, ...], tools: bool = True):
        self._tokenizer = tokenizer
        self._ends = frozenset(eos_token_ids)
        self._tools = tools
        self.response_template = _response_template(tokenizer) if tools else None

    def read(
        self, ids: list[int], generation_prompt: str = "", schemas: list[dict[str, Any]] | None = None
    ) -> AssistantTurn:
        """Reads one turn.

        Args:
            ids (`list[int]`): The tokens of the turn, with or without its EOS.
            generation_prompt (`str`, *optional*): The end of the text before them, which may have opened a thought.
            schemas (`list[dict]`, *optional*): Of the tools, by which forms without JSON know an argument's type.
        """
        if self.response_template is not None:
            return self._by_template(ids, generation_prompt, schemas)
        body = ids[:-1] if ids and ids[-1] in self._ends else ids
        return read_turn(self._decode(body), opens_thought(generation_prompt), self._tools)

    def _by_template(self, ids: list[int], prefix: str, schemas: list[dict[str, Any]] | None) -> AssistantTurn:
        text = self._decode(ids)
        try:
            parsed = self._tokenizer.parse_response(text, self.response_template, prefix=prefix, tools=schemas)
        except (ValueError, TypeError, RecursionError) as error:
            return AssistantTurn(
                {"role": "assistant", "content": self._without_end(text, ids)},
                [f"The call cannot be read ({_first_line(error)}); write it as the instructions say."],
            )
        message: dict[str, Any] = {"role": "assistant", "content": self._without_end(parsed.get("content") or "", ids)}
        if parsed.get("reasoning_content"):
            message["reasoning_content"] = parsed["reasoning_content"].strip()
        calls, faults = [], []
        for call in parsed.get("tool_calls") or ():
            function = call.get("function") if isinstance(call, dict) else None
            _take(function, calls, faults)
        return AssistantTurn(message | ({"tool_calls": calls} if calls else {}), faults)

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _without_end(self, text: str, ids: list[int]) -> str:
        end = self._decode(ids[-1:]) if ids and ids[-1] in self._ends else ""
        return text.removesuffix(end).strip()


def opens_thought(generation_prompt: str) -> bool:
    """Whether a text ends inside a thought."""
    return generation_prompt.rfind(THINK) > generation_prompt.rfind(END_THINK)


def read_turn(text: str, opens_thought: bool, tools: bool = True) -> AssistantTurn:
    """Reads a turn whose calls are `<tool_call>{json}</tool_call>`.

    Args:
        text (`str`): What the policy wrote, without its EOS.
        opens_thought (`bool`): Whether the text before it has opened a thought.
        tools (`bool`, *optional*, defaults to `True`): Whether calls are read; else they are content.

    Returns:
        [`AssistantTurn`]: A call that cannot be read stays in the content.
    """
    thought, content, calls, faults = [], [], [], []
    position, thinking = 0, opens_thought
    while position < len(text):
        if thinking:
            end = text.find(END_THINK, position)
            thought.append(text[position : len(text) if end < 0 else end])
            position, thinking = (len(text), True) if end < 0 else (end + len(END_THINK), False)
            continue
        opening = _OPENING.search(text, position)
        if opening is None:
            content.append(text[position:])
            break
        content.append(text[position : opening.start()])
        position = opening.end()
        if opening.group() == THINK:
            thinking = True
        elif not tools:
            content.append(CALL)
        else:
            position, fault = _read_call(text, position, calls)
            if fault:
                faults.append(fault)
                content.append(text[opening.start() : position])
    message: dict[str, Any] = {"role": "assistant", "content": "".join(content).strip()}
    if "".join(thought).strip():
        message["reasoning_content"] = "".join(thought).strip()
    if calls:
        message["tool_calls"] = calls
    return AssistantTurn(message, faults)


def _read_call(text: str, start: int, calls: list[dict[str, Any]]) -> tuple[int, str | None]:
    """Reads the call after a tag. Returns where it ends, and what is wrong with it."""
    start = _SPACE.match(text, start).end()
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        return _after_call(text, start), f"A call is no JSON ({_first_line(error)}); write {_FORM}."
    closing = _SPACE.match(text, end).end()
    if not text.startswith(END_CALL, closing):
        after = text.find(CALL, end)
        is_closed_later = 0 <= text.find(END_CALL, end) < (after if after >= 0 else len(text))
        if is_closed_later:
            return _after_call(text, end), f"A call holds more than one JSON object; write {_FORM}."
        return end, f"A call is not closed by {END_CALL}; write {_FORM}."
    faults: list[str] = []
    _take(value, calls, faults)
    return closing + len(END_CALL), faults[0] if faults else None


def _after_call(text: str, start: int) -> int:
    """Where to go on after a call without JSON: after its closing tag, or before the next call."""
    following = text.find(CALL, start)
    closing = text.find(END_CALL, start)
    if closing >= 0 and (following < 0 or closing < following):
        return closing + len(END_CALL)
    return following if following >= 0 else len(text)


def _take(value: Any, calls: list[dict[str, Any]], faults: list[str]) -> None:
    """Adds a call to the calls, or what is wrong with it to the faults."""
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str) or not name.strip():
        faults.append(f"A call has no name; write {_FORM}.")
        return
    arguments = value.get("arguments")
    arguments = {} if arguments is None else arguments
    if isinstance(arguments, str):
        arguments = _decoded_arguments(arguments)
    if not isinstance(arguments, dict):
        faults.append(f'The arguments of {name.strip()!r} are no JSON object; write {{"argument": value}}.')
        return
    if not _is_sound(arguments):
        faults.append(f"The arguments of {name.strip()!r} hold a number or a character that JSON cannot hold.")
        return
    calls.append({"type": "function", "function": {"name": name.strip(), "arguments": arguments}})


def _decoded_arguments(text: str) -> Any:
    try:
        return _DECODER.decode(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return None


def _is_sound(arguments: dict[str, Any]) -> bool:
    """Whether there is no NaN, no infinity and no half of a surrogate pair."""
    try:
        json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError):
        return False
    return True


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]


def _response_template(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any] | None:
    """The tokenizer's own, or `None` for the built-in form, or trl's for the chat template."""
    own = getattr(tokenizer, "response_template", None)
    if own is not None:
        return own
    if _writes_built_in_form(tokenizer):
        return None
    known = SimpleNamespace(chat_template=tokenizer.get_chat_template(tools=[]))
    try:
        return add_response_schema(known).response_template
    except ValueError as error:
        raise ValueError(
            f"How the chat template of {tokenizer.name_or_path!r} writes the call of a tool is not known: it is not "
            f"{_FORM}, and trl has no response template for it. Set `tokenizer.response_template` (transformers' "
            "guide on parsing responses says how), or another `tokenizer.chat_template`."
        ) from error


def _writes_built_in_form(tokenizer: PreTrainedTokenizerBase) -> bool:
    call = {"type": "function", "function": {"name": _PROBE, "arguments": {"a": 1}}}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    try:
        template = tokenizer.get_chat_template(tools=[call])
        text = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)
    except (TemplateError, TypeError, ValueError):  # the form is another
        return False
    position = text.rfind(CALL)
    return position >= 0 and read_turn(text[position:].rpartition(END_CALL)[0] + END_CALL, False).calls == [
        (_PROBE, {"a": 1})
    ]
