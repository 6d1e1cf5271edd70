# SPDX-License-Identifier: Apache-2.0
"""Functions as tools: their schemas, and whether a model's arguments fit them. Every error names the function."""

import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from transformers.utils import get_json_schema
from transformers.utils.chat_template_utils import DocstringParsingException, TypeHintParsingException

from .json_types import mismatch

# What an environment's methods of these names are for is fixed
NOT_TOOLS = ("reset", "get_reward", "respond", "state_dict", "load_state_dict")
_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class Tool:
    """A function that a model can call.

    Args:
        name (`str`): By which the model calls it.
        function (`Callable`): Called with keyword arguments.
        schema (`dict`): `{"type": "function", "function": {...}}`, as chat templates take it.
        is_async (`bool`): Whether a call has to be awaited.
    """

    name: str
    function: Callable[..., Any]
    schema: dict[str, Any]
    is_async: bool

    def check(self, arguments: Mapping[str, Any]) -> str | None:
        """Returns a sentence for the model if the arguments do not fit, see [`Toolbox.check_arguments`]."""
        parameters = self.schema["function"]["parameters"]
        known, required = parameters.get("properties", {}), parameters.get("required", ())
        takes = f"it takes {', '.join(known)}" if known else "it takes none"
        for name in arguments:
            if name not in known:
                return f"{self.name} has no argument {name!r}; {takes}."
        for name in required:
            if name not in arguments:
                return f"{self.name} needs the argument {name!r}; {takes}."
        for name, value in arguments.items():
            wrong = mismatch(value, known[name])
            if wrong:
                return f"The argument {name!r} of {self.name} must be {wrong}."
        return None


class Toolbox(Mapping[str, Tool]):
    """Tools by name.

    Args:
        functions (`Iterable[Callable]`):
            Functions or bound methods with type hints and a Google docstring, sync or async.

    Raises:
        TypeError: If one is not a function.
        ValueError: If it cannot be described to a model, or two have the same name.
    """

    def __init__(self, functions: Iterable[Callable[..., Any]] = ()):
        self._tools: dict[str, Tool] = {}
        for function in functions:
            tool = _tool(function)
            if tool.name in self._tools:
                raise ValueError(
                    f"Two tools are named {tool.name!r}: {function!r} and {self._tools[tool.name].function!r}. "
                    "A model calls a tool by its name; rename one."
                )
            self._tools[tool.name] = tool

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """The schemas, for a chat template."""
        return [tool.schema for tool in self._tools.values()]

    def check_arguments(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        """Checks a call.

        Args:
            name (`str`): The tool that the model named.
            arguments (`dict`): What it passed.

        Returns:
            `str`, *optional*: A sentence for the model that says what is wrong; `None` if the call fits.
        """
        if name not in self._tools:
            known = f"The tools are: {', '.join(self._tools)}." if self._tools else "There are no tools."
            return f"There is no tool {name!r}. {known}"
        return self._tools[name].check(arguments)


def public_methods(environment: Any) -> list[Callable[..., Any]]:
    """The methods of an environment that are tools, in the order of their definition.

    Args:
        environment (`type` or instance): With a class, the methods are bound to the class: good for schemas only.

    Returns:
        `list[Callable]`: All public methods but those of [`NOT_TOOLS`]. Properties are not read.
    """
    owner = environment if isinstance(environment, type) else type(environment)
    names = dict.fromkeys(name for base in reversed(owner.__mro__[:-1]) for name in vars(base))
    methods = []
    for name in names:
        attribute = inspect.getattr_static(owner, name)
        if name.startswith("_") or name in NOT_TOOLS or not _is_method(attribute):
            continue
        method = getattr(environment, name)
        is_unbound = environment is owner and isinstance(attribute, types.FunctionType)
        methods.append(types.MethodType(method, owner) if is_unbound else method)
    return methods


def _is_method(attribute: Any) -> bool:
    return isinstance(attribute, types.FunctionType | staticmethod | classmethod)


def _tool(function: Callable[..., Any]) -> Tool:
    name = getattr(function, "__name__", None)
    is_built_in = inspect.isbuiltin(function) or isinstance(function, type)  # without hints
    if not callable(function) or is_built_in or not isinstance(name, str):
        raise TypeError(
            f"The tool {function!r} is a {type(function).__name__}, not a function or a bound method. Write a "
            "function with type hints and a docstring."
        )
    if name == "<lambda>" or name.startswith("_"):
        raise ValueError(
            f"The tool {name!r} needs a public name, by which a model can call it. Write it as `def name(...)`, "
            "without an underscore in front."
        )
    _check_signature(name, function)
    try:
        schema = get_json_schema(function)
    except (DocstringParsingException, TypeHintParsingException, TypeError, NameError) as error:
        raise ValueError(
            f"The tool {name!r} cannot be described to a model: {' '.join(map(str, error.args))} Give each parameter "
            f"a type hint and a line under `Args:` in a Google docstring{_undescribed(function)}."
        ) from error
    return Tool(name, function, schema, inspect.iscoroutinefunction(function))


def _check_signature(name: str, function: Callable[..., Any]) -> None:
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in _BY_KEYWORD:
            raise ValueError(
                f"The parameter {parameter.name!r} of the tool {name!r} is {parameter.kind.description}, but models "
                "pass arguments by name. Write each one out as an ordinary parameter."
            )
        if parameter.annotation is inspect.Parameter.empty:
            raise ValueError(
                f"The parameter {parameter.name!r} of the tool {name!r} has no type hint, so a model would not know "
                f"what to pass. Add one, for example `{parameter.name}: str`."
            )


def _undescribed(function: Callable[..., Any]) -> str:
    docstring = inspect.getdoc(function) or ""
    missing = [name for name in inspect.signature(function).parameters if f"{name}:" not in docstring]
    return f" (not described: {', '.join(missing)})" if docstring and missing else ""
