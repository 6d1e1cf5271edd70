# SPDX-License-Identifier: Apache-2.0
"""What a tool returned, as text for the model: any value has one, and it depends on nothing but the value."""

import dataclasses
import json
import re
from collections.abc import Mapping
from enum import Enum
from itertools import islice
from typing import Any

MOST_CHARACTERS = 1_000_000
_MOST_ITEMS = 10_000
_DEEPEST = 20
_ADDRESS = re.compile(r" (?:object )?at 0x[0-9a-fA-F]+")


def result_text(value: Any, most_characters: int = MOST_CHARACTERS) -> str:
    """Returns what a tool returned as text. Never raises.

    A string stays as it is, and everything else becomes JSON: nothing is `null`, a set a sorted list, a dataclass an
    object, and an object that JSON does not know its own text, without its address.

    Args:
        value (`Any`): The tool's return value.
        most_characters (`int`, *optional*, defaults to 1,000,000):
            Longer text is cut, so that nothing of any size is encoded.
    """
    text = value if isinstance(value, str) else None
    if text is None and isinstance(value, bytes | bytearray | memoryview):
        text = _decoded(value, most_characters)
    if text is None:
        plain = _plain(value, _DEEPEST)
        text = plain if isinstance(plain, str) else _json(plain, most_characters)
    return str.__str__(text)[:most_characters].encode("utf-8", "replace").decode("utf-8")


def _json(plain: Any, most_characters: int) -> str:
    pieces, length = [], 0
    for piece in json.JSONEncoder(ensure_ascii=False).iterencode(plain):
        pieces.append(piece)
        length += len(piece)
        if length > most_characters:
            break
    return "".join(pieces)


def _plain(value: Any, depth: int) -> Any:
    """The value in terms of JSON."""
    if value is None or type(value) in (bool, float, str):
        return value
    if type(value) is int:
        return value if value.bit_length() < 10_000 else f"<a whole number of {value.bit_length()} bits>"
    if depth == 0:
        return "..."
    try:
        return _plain_object(value, depth - 1)
    except Exception as error:  # code of users, whose error is the text
        return f"<{type(value).__name__}, which cannot be read: {type(error).__name__}>"


def _plain_object(value: Any, depth: int) -> Any:
    if isinstance(value, Enum):
        return _plain(value.value, depth)
    if isinstance(value, bytes | bytearray | memoryview):
        return _decoded(value, MOST_CHARACTERS)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {_key(key): _plain(item, depth) for key, item in islice(value.items(), _MOST_ITEMS)}
    if isinstance(value, list | tuple):
        return [_plain(item, depth) for item in islice(value, _MOST_ITEMS)]
    if isinstance(value, set | frozenset):
        return sorted((_plain(item, depth) for item in islice(value, _MOST_ITEMS)), key=_order)
    if hasattr(value, "tolist"):  # an array or a tensor
        return _plain(value.tolist(), depth)
    return _own_text(value)


def _order(plain: Any) -> tuple:
    number = isinstance(plain, int | float)
    return (not number, plain if number and plain == plain else 0, "" if number else json.dumps(plain))


def _key(key: Any) -> str:
    plain = _plain(key, 2)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _own_text(value: Any) -> str:
    """The text of an object, without the address of the standard one, which differs from run to run."""
    text = str(value)[:MOST_CHARACTERS]
    return _ADDRESS.sub("", text) if type(value).__str__ is object.__str__ else text


def _decoded(value: bytes | bytearray | memoryview, most_characters: int) -> str:
    return bytes(memoryview(value)[: 4 * most_characters]).decode("utf-8", "replace")
