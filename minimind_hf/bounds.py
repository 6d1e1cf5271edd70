# SPDX-License-Identifier: Apache-2.0
"""What a setting may be: declared in its type, checked by one loop when the settings are made.

    num_generations: Count = 6
    thinking_ratio: Share = 0.9
    forward_layout: Annotated[str, Bounds(choices=LAYOUTS)] = "shared_prompt"

The bounds are part of the type because HfArgumentParser passes everything in a field's `metadata` to argparse. Numbers
must be numbers and finite, and switches must be switches: the text "false" would turn one on. `None` is accepted where
the type has it.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import numpy as np


@dataclass(frozen=True)
class Bounds:
    """The values that a setting may have.

    Args:
        at_least (`float`, *optional*), at_most (`float`, *optional*): Limits that are allowed themselves.
        above (`float`, *optional*): A lower limit that is not allowed itself.
        choices (`tuple`): The only values. Empty: any.
        remedy (`str`): What to do about a wrong value, where the limits alone do not tell.
    """

    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    choices: tuple = ()
    remedy: str = ""

    def hold(self, value: Any) -> bool:
        """Whether the value is allowed."""
        return (
            (not self.choices or value in self.choices)
            and (self.at_least is None or value >= self.at_least)
            and (self.at_most is None or value <= self.at_most)
            and (self.above is None or value > self.above)
        )

    def __str__(self) -> str:
        if self.choices:
            return f"one of {', '.join(map(repr, self.choices))}"
        limits = {"at least": self.at_least, "above": self.above, "at most": self.at_most}
        return " and ".join(f"{words} {limit}" for words, limit in limits.items() if limit is not None)


Count = Annotated[int, Bounds(at_least=1)]
NotNegative = Annotated[float, Bounds(at_least=0)]
Positive = Annotated[float, Bounds(above=0)]
Share = Annotated[float, Bounds(at_least=0, at_most=1)]


def check_settings(settings: Any, types: Mapping[str, Any] | None = None) -> None:
    """Checks type and bounds of every setting.

    Args:
        settings (`Any`): An instance of a dataclass.
        types (`Mapping[str, Any]`, *optional*): Types of the fields to check. Unset: all, as declared.

    Raises:
        ValueError: With the setting's name, its value and what it must be.
    """
    for name, declared in (declared_types(type(settings)) if types is None else types).items():
        kinds, bounds = _read(declared)
        value = getattr(settings, name)
        if value is None and type(None) in kinds:
            continue
        remedy = f" {bounds.remedy}" if bounds.remedy else ""
        if kind := _missed_kind(value, kinds - {type(None)}):
            of_type = "" if value is None else f" of type {type(value).__name__}"
            raise ValueError(f"{name} must be {kind}, got {value!r}{of_type}.{remedy}")
        if not bounds.hold(value):
            or_unset = ", or None" if type(None) in kinds else ""
            raise ValueError(f"{name} must be {bounds}{or_unset}, got {value!r}.{remedy}")


@functools.cache
def declared_types(settings_class: type) -> dict[str, Any]:
    """Types by field, as the class declares them; HfArgumentParser removes `None` from those of `fields`."""
    hints = get_type_hints(settings_class, include_extras=True)
    return {each.name: hints[each.name] for each in fields(settings_class)}


@functools.cache
def _read(declared: Any) -> tuple[frozenset[Any], Bounds]:
    """The types that a value may be of, and its bounds."""
    if get_origin(declared) is Annotated:
        inner, *said = get_args(declared)
        return _read(inner)[0], next((each for each in said if isinstance(each, Bounds)), Bounds())
    if get_origin(declared) not in (Union, UnionType):
        return frozenset({declared}), Bounds()
    parts = [_read(part) for part in get_args(declared)]
    bounds = next((bounds for _, bounds in parts if bounds != Bounds()), Bounds())
    return frozenset().union(*(kinds for kinds, _ in parts)), bounds


def _missed_kind(value: Any, kinds: frozenset[Any]) -> str | None:
    """What the value should be and is not; only numbers and switches are checked."""
    if kinds == {bool}:
        is_switch = isinstance(value, int | np.bool_) and value in (0, 1)
        return None if is_switch else "True or False"
    if not kinds <= {int, float}:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, *kinds)):
        return "a number" if float in kinds else "a whole number"
    return None if math.isfinite(value) else "a finite number"
