# SPDX-License-Identifier: Apache-2.0
"""Which tools a row's conversation gets: its own, or those of the whole data set."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .conversations import ParsedPrompt, PromptError

Schemas = Sequence[dict[str, Any]]


class RowTools:
    """Gives rows their tools.

    Args:
        tools (`list[dict]` or `Callable`, *optional*): Schemas for rows without own ones, or a function of the row.
        implemented (`set[str]`, *optional*): Names of tools that can be called; unset, rows may name any.

    Attributes:
        depend_on_row (`bool`): Whether `tools` is a function, which reads other columns.

    Raises:
        PromptError: If `tools` is neither a list of schemas nor a function.
    """

    def __init__(self, tools: Schemas | Callable | None, implemented: set[str] | None):
        self.depend_on_row = callable(tools)
        self._tools = tools if self.depend_on_row else _checked(tools, "tools")
        self._implemented = implemented

    def added_to(self, parsed: ParsedPrompt, row: Mapping[str, Any], where: str) -> ParsedPrompt:
        """Returns the prompt with its tools.

        Args:
            parsed ([`ParsedPrompt`]): The row's prompt.
            row (`dict`): The whole row.
            where (`str`): Place of the row, for error messages.

        Raises:
            PromptError: If the row names a tool that nobody implements, or is a string, which shows no tools.
        """
        self._check_implemented(parsed.tools, where)
        tools = parsed.tools or self._of_row(row, where)
        if tools and not parsed.conversational:
            raise PromptError(
                f"{where}: the prompt is a string, but there are tools ({', '.join(map(tool_name, tools))}), which "
                'only a chat template can show. Give messages: [{"role": "user", "content": ...}].'
            )
        return replace(parsed, tools=tools)

    def _of_row(self, row: Mapping[str, Any], where: str) -> list[dict[str, Any]] | None:
        return _checked(self._tools(dict(row)), f"{where}: tools") if self.depend_on_row else self._tools

    def _check_implemented(self, tools: Schemas | None, where: str) -> None:
        for tool in tools or () if self._implemented is not None else ():
            name = tool_name(tool)
            if name not in self._implemented:
                known = ", ".join(sorted(self._implemented)) or "there are none"
                raise PromptError(
                    f"{where}: its tools include {name!r}, which nobody implements (implemented: {known}). Pass a "
                    "function of that name as one of `tools`, or remove it from the row."
                )


def tool_name(schema: Mapping[str, Any]) -> str | None:
    """The name of a tool, from its schema with or without the wrapper `{"type": "function", "function": ...}`."""
    inner = schema.get("function")
    return (inner if isinstance(inner, Mapping) else schema).get("name")


def _checked(tools: Any, where: str) -> list[dict[str, Any]] | None:
    is_list = isinstance(tools, Sequence) and all(isinstance(tool, Mapping) and tool_name(tool) for tool in tools)
    if tools is not None and not is_list:
        raise PromptError(
            f"{where} is {tools!r}, expected a list of JSON schemas, each with a name. "
            "transformers.utils.get_json_schema makes one of a function."
        )
    return list(tools) if tools else None
