# SPDX-License-Identifier: Apache-2.0
"""Settings that are numbers are numbers, and finite: a text or a fraction is refused before it is computed with.

And switches are switches: the text "false" would switch one on.
"""

import functools
import math
from dataclasses import fields
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
from transformers import TrainingArguments

_OF_TRANSFORMERS = {each.name for each in fields(TrainingArguments)}  # which takes None for numbers of its own


def check_switches(config: Any) -> None:
    """Checks every field that is declared as `bool`; transformers checks its own as it likes.

    Raises:
        ValueError: With the field's name and value.
    """
    for name, declared in _declared(type(config)).items():
        value = getattr(config, name)
        if declared is not bool or name in _OF_TRANSFORMERS:
            continue
        if not isinstance(value, (int, np.bool_)) or value not in (0, 1):
            raise ValueError(f"{name} must be True or False, got {value!r} of type {type(value).__name__}.")


def check_numbers(config: Any) -> None:
    """Checks every field of a dataclass that is declared as `int` or `float`, `None` where that is declared too.

    Raises:
        ValueError: With the field's name and value.
    """
    for name, declared in _declared(type(config)).items():
        is_union = get_origin(declared) in (Union, UnionType)
        kinds = set(get_args(declared) if is_union else (declared,))
        value = getattr(config, name)
        if not kinds <= {int, float, type(None)}:
            continue
        if value is None and (type(None) in kinds or name in _OF_TRANSFORMERS):
            continue
        allowed = (int, float) if float in kinds else (int,)
        if not isinstance(value, allowed) or isinstance(value, bool):
            wanted = "a number" if float in kinds else "a whole number"
            raise ValueError(f"{name} must be {wanted}, got {value!r} of type {type(value).__name__}.")
        if math.isinf(value) or math.isnan(value):
            raise ValueError(f"{name} must be a finite number, got {value}.")


@functools.cache
def _declared(config_class: type) -> dict[str, Any]:
    """Types by field as the class declares them; HfArgumentParser takes `None` out of those of `fields`."""
    hints = get_type_hints(config_class)
    return {each.name: hints[each.name] for each in fields(config_class)}
