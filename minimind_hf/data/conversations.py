# SPDX-License-Identifier: Apache-2.0
"""One row of a data set becomes one checked prompt: a string or a list of messages.

Two formats are read: MiniMind's `conversations` (a last assistant turn is dropped, because the policy writes its own)
and trl's `prompt` (a string, or messages; a last assistant turn is the beginning of the completion). Every error is a
[`PromptError`] that says where the row is, what was found there and how to correct it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Messages = list[dict[str, Any]]

PROMPT_COLUMNS = ("prompt", "conversations")
NOT_PASSED_ON = (*PROMPT_COLUMNS, "messages")
PASSED_TO_TEMPLATE = ("tools", "chat_template_kwargs")
OWN_TEMPLATE_ARGUMENTS = ("conversation", "tools", "tokenize", "add_generation_prompt", "continue_final_message")
RESERVED_COLUMNS = ("prompts", "completions", "completion_ids")
ROLES = ("system", "developer", "user", "assistant", "tool")


class PromptError(ValueError):
    """Prompt data or a setting of the prompt data set cannot be used."""


@dataclass(frozen=True)
class ParsedPrompt:
    """A prompt and what its chat template needs besides the messages.

    Args:
        prompt (`str` or `list[dict]`): The text, or the messages.
        tools (`list[dict]`, *optional*): Tool descriptions found in the system message.
        template_kwargs (`dict`): The row's own `chat_template_kwargs`.
        answer (`str` or `dict`, *optional*): What the row holds as the completion: a text, or an assistant's message.
    """

    prompt: str | Messages
    tools: list[dict] | None
    template_kwargs: dict[str, Any]
    answer: str | dict[str, Any] | None = None

    @property
    def conversational(self) -> bool:
        return not isinstance(self.prompt, str)

    @property
    def continues_assistant(self) -> bool:
        return self.conversational and self.prompt[-1]["role"] == "assistant"


def prompt_column(columns: Iterable[str]) -> str:
    """Returns the name of the column with the prompts; `prompt` wins if there are both.

    Raises:
        PromptError: If there is neither, or a column has a name that reward functions use for something else.
    """
    columns = list(columns)
    others = [name for name in columns if not isinstance(name, str)]
    if others:
        raise PromptError(
            f"The data set has a column named {others[0]!r}, a {type(others[0]).__name__}. Columns are passed to "
            "reward functions as arguments, so each name must be a string. Rename it."
        )
    reserved = [name for name in columns if name in RESERVED_COLUMNS]
    if reserved:
        raise PromptError(
            f"The data set has a column {reserved[0]!r}, but every reward function receives another argument of that "
            f"name. Rename it, for example with `dataset.rename_column({reserved[0]!r}, 'reference')`."
        )
    for name in PROMPT_COLUMNS:
        if name in columns:
            return name
    raise PromptError(
        "The data set has neither a `prompt` column (a string or a list of messages) nor a `conversations` column "
        f"(MiniMind's format); its columns are {columns}. Rename or build one of them, for example with "
        "`dataset.rename_column('question', 'prompt')`."
    )


def parse_row(row: Mapping[str, Any], column: str, where: str) -> ParsedPrompt:
    """Checks one row and returns its prompt.

    Args:
        row (`Mapping`): The row.
        column (`str`): `"prompt"` or `"conversations"`.
        where (`str`): Place of the row, for error messages (`"row 3"`, `"prompts.jsonl, line 4"`).

    Returns:
        [`ParsedPrompt`]: The prompt, ready for the chat template.

    Raises:
        PromptError: If the prompt is missing, empty or malformed.
    """
    value = row.get(column)
    if column == "prompt" and isinstance(value, str):
        if not value:
            raise PromptError(f"{where}: `prompt` is an empty string. Remove the row or give it a text.")
        _check_text(value, f"{where}: `prompt`")
        return ParsedPrompt(value, None, {}, _answer_of(row))
    expected = "a list of messages" if column == "conversations" else "a string or a list of messages"
    if not isinstance(value, list) or not value:
        found = "is missing" if value is None else f"is {_excerpt(value)}"
        raise PromptError(
            f"{where}: `{column}` {found}, expected {expected}, each "
            '{"role": "user", "content": "..."}. Correct or remove the row.'
        )
    messages = [_parse_message(message, f"{where}: `{column}[{i}]`") for i, message in enumerate(value)]
    answer = _answer_of(row)
    if column == "conversations" and messages[-1]["role"] == "assistant":
        answer = messages.pop()
    if not messages or messages[-1]["role"] in ("system", "developer"):
        raise PromptError(
            f"{where}: `{column}` leaves nothing to answer: without a last assistant turn its roles are "
            f"{[message['role'] for message in messages]}. It needs at least one user turn."
        )
    tools = tools_of(row, _take_tools(messages, where), where)
    return ParsedPrompt(messages, tools, template_kwargs_of(row, where), answer)


def _answer_of(row: Mapping[str, Any]) -> str | dict[str, Any] | None:
    """The column `completion` of trl: a text, or messages whose first is the answer. Who needs it checks it."""
    value = row.get("completion")
    if isinstance(value, list):
        value = value[0] if value else None
    return dict(value) if isinstance(value, Mapping) else value


def template_kwargs_of(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The row's own arguments for the chat template, from an object or JSON text, see [`check_template_kwargs`]."""
    where, value = f"{where}: `chat_template_kwargs`", row.get("chat_template_kwargs")
    is_json = isinstance(value, str) and (value.lstrip().startswith("{") or not value.strip())
    return check_template_kwargs(_decode(value, where) if is_json else value, where)


def tools_of(row: Mapping[str, Any], from_messages: list[dict] | None, where: str) -> list[dict] | None:
    """The tool descriptions of a conversation: of its system message, or of the row's column `tools`.

    Raises:
        PromptError: If both have some that differ, or the column is not a list of objects or its JSON text.
    """
    own = _as_tools(row.get("tools"), f"{where}: `tools`")
    if own and from_messages and own != from_messages:
        raise PromptError(
            f"{where}: the column `tools` is {_excerpt(own)}, but the system message has other tools "
            f"({_excerpt(from_messages)}). Give them in one place."
        )
    return own or from_messages


def check_template_kwargs(value: Any, where: str) -> dict[str, Any]:
    """Checks arguments for a chat template and returns those that are set.

    Raises:
        PromptError: If it is not a dictionary, or sets what the rendering decides itself.
    """
    if not isinstance(value, Mapping | None):
        raise PromptError(
            f"{where} is {_excerpt(value)}, expected an object such as "
            '{"enable_thinking": false}. Correct or remove it.'
        )
    given = dict(_without_none(value or {}))
    for name in OWN_TEMPLATE_ARGUMENTS:
        if name in given:
            raise PromptError(
                f"{where} holds {name!r} ({_excerpt(given[name])}), which the rendering of prompts decides. Remove "
                "it; chat_template_kwargs is for variables of the template."
            )
    return given


def parse_messages(value: Any, where: str) -> tuple[Messages, list[dict] | None]:
    """Checks a whole conversation, answers included, and takes the tool descriptions from its system message.

    Args:
        value (`list[dict]`): The messages.
        where (`str`): Place of the conversation, for error messages (`"row 3: `chosen`"`).

    Returns:
        `tuple`: The messages and the tools, `None` if there are none.

    Raises:
        PromptError: If it is not a list of messages, or a message is malformed.
    """
    if not isinstance(value, list) or not value:
        raise PromptError(
            f"{where} is {_excerpt(value)}, expected a list of messages, each "
            '{"role": "user", "content": "..."}. Correct or remove the row.'
        )
    messages = [_parse_message(message, f"{where}[{i}]") for i, message in enumerate(value)]
    return messages, _take_tools(messages, where)


def check_same_kind(parsed: ParsedPrompt, conversational: bool, where: str) -> None:
    """Refuses a data set in which some prompts are strings and others are messages.

    Raises:
        PromptError: If `parsed` is of another kind than the rows before it.
    """
    if parsed.conversational != conversational:
        kinds = ("a string", "a list of messages")
        raise PromptError(
            f"{where}: the prompt is {kinds[parsed.conversational]}, but the prompts before it are each "
            f"{kinds[conversational]}. Use one kind in the whole data set. A string s can be written as "
            '[{"role": "user", "content": s}].'
        )


def _parse_message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping) or "role" not in message:
        hint = " (`from`/`value` is another format; rename them)" if _is_sharegpt(message) else ""
        raise PromptError(
            f'{where} is {_excerpt(message)}, expected {{"role": ..., "content": ...}}{hint}. Correct the row.'
        )
    # A data set gives all messages of a column the same keys and fills missing ones with None.
    message = dict(_without_none(message))
    if message.get("role") not in ROLES:
        raise PromptError(
            f"{where} has the role {message.get('role')!r}, expected one of {list(ROLES)}. Chat templates drop or "
            "refuse other roles; rename it."
        )
    if isinstance(message.get("tool_calls"), str):
        message["tool_calls"] = _decode(message["tool_calls"], f"{where}: `tool_calls`")
    _check_objects(message.get("tool_calls"), f"{where}: `tool_calls`")
    if message.get("tool_calls"):
        message["tool_calls"] = [_as_call(call, f"{where}: `tool_calls`") for call in message["tool_calls"]]
    if not isinstance(message.get("reasoning_content", ""), str):
        raise PromptError(
            f"{where} has the reasoning_content {_excerpt(message['reasoning_content'])}, expected a string. Correct "
            "the row."
        )
    if message.get("content") is None and message.get("tool_calls"):
        message["content"] = ""
    if not isinstance(message.get("content"), str):
        raise PromptError(
            f"{where} has the content {_excerpt(message.get('content'))}, expected a string (only text is supported). "
            "Correct the row."
        )
    _check_text(message["content"], f"{where}: `content`")
    return message


def _as_call(call: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A call in the form that all templates take: under `function`, its arguments an object, not JSON text."""
    function = call.get("function") or {key: value for key, value in call.items() if key not in ("type", "id")}
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise PromptError(
            f'{where} holds {_excerpt(call)}, expected {{"name": ..., "arguments": {{...}}}}, also under `function`. '
            "Correct or remove the row."
        )
    function = dict(_without_none(function))
    arguments = function.get("arguments", {})
    arguments = _decode(arguments, where) or {} if isinstance(arguments, str) else arguments
    if not isinstance(arguments, Mapping):
        raise PromptError(
            f"{where}: the arguments of {function['name']!r} are {_excerpt(arguments)}, expected an object. Correct "
            "or remove the row."
        )
    around = {key: value for key, value in _without_none(call) if key in ("type", "id")}
    return {"type": "function", **around, "function": {**function, "arguments": arguments}}


def _check_text(text: str, where: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(
            f"{where} holds half of a surrogate pair, which is not valid text ({error}). Correct it."
        ) from error


def _take_tools(messages: Messages, where: str) -> list[dict] | None:
    """Takes MiniMind's `tools` field (JSON or a list) from the system or developer message."""
    if messages[0]["role"] not in ("system", "developer"):
        return None
    return _as_tools(messages[0].pop("tools", None), f"{where}: `tools`")


def _as_tools(tools: Any, where: str) -> list[dict] | None:
    tools = _decode(tools, where) if isinstance(tools, str) else tools
    if isinstance(tools, list):
        tools = [_decode(tool, where) if isinstance(tool, str) else tool for tool in tools]
    _check_objects(tools, where)
    return tools or None


def _check_objects(value: Any, where: str) -> None:
    if value and not (isinstance(value, list) and all(isinstance(item, Mapping) for item in value)):
        raise PromptError(f"{where} is {_excerpt(value)}, expected a list of objects. Correct or remove the field.")


def _decode(text: str, where: str) -> Any:
    if not text.strip():
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise PromptError(
            f"{where} is not valid JSON ({error}): {_excerpt(text)}. Correct or remove the field."
        ) from error


def _is_sharegpt(message: Any) -> bool:
    return isinstance(message, Mapping) and "from" in message and "value" in message


def _without_none(mapping: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    return ((key, value) for key, value in mapping.items() if value is not None)


def _excerpt(value: Any, length: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= length else text[:length] + "..."
