# SPDX-License-Identifier: Apache-2.0
"""Settings that are numbers are numbers, and finite: a text or a fraction is refused before it is computed with."""

import math
from dataclasses import fields
from types import UnionType
from typing import Any, Union, get_args, get_origin


def check_numbers(config: Any) -> None:
    """Checks every field of a dataclass that is declared as `int` or `float`, `None` where that is declared too.

    Raises:
        ValueError: With the field's name and value.
    """
    for each in fields(config):
        # HfArgumentParser leaves `list[float]` where `list[float] | None` was declared.
        is_union = get_origin(each.type) in (Union, UnionType)
        kinds = set(get_args(each.type) if is_union else (each.type,))
        value = getattr(config, each.name)
        if value is None or not kinds <= {int, float, type(None)}:
            continue
        allowed = (int, float) if float in kinds else (int,)
        if not isinstance(value, allowed) or isinstance(value, bool):
            wanted = "a number" if float in kinds else "a whole number"
            raise ValueError(f"{each.name} must be {wanted}, got {value!r} of type {type(value).__name__}.")
        if math.isinf(value) or math.isnan(value):
            raise ValueError(f"{each.name} must be a finite number, got {value}.")
