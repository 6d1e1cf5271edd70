# SPDX-License-Identifier: Apache-2.0
"""Names of a room that are imported when they are first used, for rooms that the command line touches.

    __getattr__, __dir__ = lazy(__name__, {"Chat": ".chat"})

It imports only the standard library.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(room: str, where: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """What a room's `__init__` needs to import its names, and the modules that hold them, when they are first used.

    Args:
        room (`str`): `__name__` of the room.
        where (`Mapping[str, str]`): The module of each name, with a dot in front.

    Returns:
        `tuple[Callable, Callable]`: `__getattr__` and `__dir__`.
    """

    def get(name: str) -> Any:
        if f".{name}" in where.values() and name not in where:
            return import_module(f".{name}", room)
        if name not in where:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return getattr(import_module(where[name], room), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[room]), *where})

    return get, names
