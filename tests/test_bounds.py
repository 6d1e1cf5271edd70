# SPDX-License-Identifier: Apache-2.0
"""Settings are checked where they are declared: types, and bounds that are part of them."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import pytest
from naming import raises_naming
from transformers import HfArgumentParser

from minimind_hf.bounds import Bounds, Count, NotNegative, Positive, Share, check_settings

_Even = Annotated[int, Bounds(choices=(2, 4), remedy="Take an even one.")]


@dataclass
class Settings:
    count: Count = 1
    limit: Count | None = None
    weight: NotNegative = 0.0
    scale: Positive = 1.0
    share: Share = 0.5
    even: _Even = 2
    name: Annotated[str | None, Bounds(choices=("a", "b"))] = None
    switch: bool = False
    tags: list[str] | None = None
    noted: Annotated[int, "a note of another library", Bounds(at_most=3)] = 3
    anything: Any = field(default_factory=dict)

    def __post_init__(self):
        check_settings(self)


@pytest.mark.parametrize(
    "values",
    [
        {"count": 5, "limit": 1, "weight": 0, "scale": 1e-9, "share": 1, "even": 4, "name": "b"},
        {"share": 0.0, "switch": True, "tags": ["x"], "noted": -7},
        {"switch": np.bool_(True), "scale": np.float64(2.0)},
    ],
)
def test_taken(values):
    settings = Settings(**values)
    assert {name: getattr(settings, name) for name in values} == values


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("count", 0, "at least 1"),
        ("count", None, "a whole number"),
        ("count", 1.0, "a whole number"),
        ("count", True, "a whole number"),
        ("count", "1", "a whole number"),
        ("limit", 0, "at least 1, or None"),
        ("weight", -1e-9, "at least 0"),
        ("weight", "0", "a number"),
        ("scale", 0, "above 0"),
        ("scale", math.inf, "a finite number"),
        ("share", math.nan, "a finite number"),
        ("share", 1.01, "at least 0 and at most 1"),
        ("even", 3, "one of 2, 4"),
        ("name", "c", "one of 'a', 'b', or None"),
        ("switch", "false", "True or False"),
        ("switch", None, "True or False"),
        ("switch", 2, "True or False"),
        ("noted", 4, "at most 3"),
    ],
)
def test_refused(name, value, wanted):
    with pytest.raises(ValueError) as error:
        Settings(**{name: value})
    assert str(error.value).startswith(f"{name} must be {wanted}, got {value!r}")
    assert ("Take an even one." in str(error.value)) == (name == "even")


def test_only_the_given_types_are_checked():
    settings = Settings()
    settings.count, settings.share = 0, 2.0
    check_settings(settings, {"weight": NotNegative})
    with raises_naming(ValueError, "share", 0, 1, 2.0):
        check_settings(settings, {"share": Share})


def test_a_parser_sees_plain_types_and_leaves_the_bounds_in_force():
    @dataclass
    class Flags:
        limit: Count | None = None
        share: Share = 0.5

        def __post_init__(self):
            check_settings(self)

    parser = HfArgumentParser(Flags)
    assert parser.parse_args_into_dataclasses(["--limit", "3"], look_for_args_file=False) == (Flags(3, 0.5),)
    assert parser.parse_args_into_dataclasses([], look_for_args_file=False) == (Flags(None, 0.5),)
    with raises_naming(ValueError, "limit", 1, None, 0):
        parser.parse_args_into_dataclasses(["--limit", "0"], look_for_args_file=False)
