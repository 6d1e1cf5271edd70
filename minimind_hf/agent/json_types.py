# SPDX-License-Identifier: Apache-2.0
"""Whether a JSON value is what a schema of `get_json_schema` says, and how to say so to a model."""

from collections.abc import Mapping
from typing import Any

_NAMES = {
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


def mismatch(value: Any, schema: Mapping[str, Any]) -> str | None:
    """Compares a value with a schema.

    A whole number is a number. `true` is no number, 3.0 no whole number and "3" neither.

    Args:
        value (`Any`): Parsed JSON.
        schema (`dict`): With `type`, `enum`, `anyOf`, `nullable`, `items`, `prefixItems` or `additionalProperties`.

    Returns:
        `str`, *optional*: What was expected and what was found ("a whole number, not the string '3'"), else `None`.
    """
    if value is None and schema.get("nullable"):
        return None
    if "anyOf" in schema:
        wrong = [mismatch(value, option) for option in schema["anyOf"]]
        return None if None in wrong else f"{_expected(schema)}, not {_found(value)}"
    if not _has_type(value, schema) or ("enum" in schema and not _is_one_of(value, schema["enum"])):
        return f"{_expected(schema)}, not {_found(value)}"
    return _wrong_inside(value, schema)


def _has_type(value: Any, schema: Mapping[str, Any]) -> bool:
    kinds = _kinds(schema)
    kind = _kind(value)
    return not kinds or kind in kinds or (kind == "integer" and "number" in kinds) or not _NAMES.keys() >= set(kinds)


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    kinds = schema.get("type", [])
    return [kinds] if isinstance(kinds, str) else list(kinds)


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    for python, kind in ((int, "integer"), (float, "number"), (str, "string"), (Mapping, "object")):
        if isinstance(value, python):
            return kind
    return "array"


def _is_one_of(value: Any, options: list) -> bool:
    return any(value == option and _kind(value) == _kind(option) for option in options)


def _wrong_inside(value: Any, schema: Mapping[str, Any]) -> str | None:
    parts: list[tuple[Any, Mapping[str, Any], str]] = []
    if isinstance(value, list) and "prefixItems" in schema:
        if len(value) != len(schema["prefixItems"]):
            return f"a list of {len(schema['prefixItems'])}, not of {len(value)}"
        parts = [
            (item, inner, f"item {i}")
            for i, (item, inner) in enumerate(zip(value, schema["prefixItems"], strict=True))
        ]
    elif isinstance(value, list) and schema.get("items"):
        parts = [(item, schema["items"], f"item {i}") for i, item in enumerate(value)]
    elif isinstance(value, Mapping) and isinstance(schema.get("additionalProperties"), Mapping):
        parts = [(item, schema["additionalProperties"], f"the value of {key!r}") for key, item in value.items()]
    for item, inner, where in parts:
        wrong = mismatch(item, inner)
        if wrong:
            return f"{_NAMES[_kind(value)]} in which {where} is {wrong}"
    return None


def _expected(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        text = " or ".join(dict.fromkeys(_expected(option) for option in schema["anyOf"]))
    elif "enum" in schema:
        text = "one of " + ", ".join(map(repr, schema["enum"]))
    else:
        text = " or ".join(_NAMES.get(kind, kind) for kind in _kinds(schema))
    return f"{text} or null" if schema.get("nullable") else text


def _found(value: Any) -> str:
    if isinstance(value, str):
        return f"the string {value[:40]!r}" + ("..." if len(value) > 40 else "")
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return _NAMES[_kind(value)] if isinstance(value, list | Mapping) else repr(value)
