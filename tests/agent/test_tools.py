# SPDX-License-Identifier: Apache-2.0
"""Functions and methods become tools, arguments are checked against their types, and any result becomes text."""

import asyncio
import dataclasses
import datetime
import enum
import functools
from typing import Literal

import numpy
import pytest
import torch
from naming import assert_names, raises_naming

from minimind_hf.agent import Toolbox, public_methods, result_text


def search(
    query: str,
    count: int = 3,
    weight: float = 1.0,
    exact: bool = False,
    words: list[str] | None = None,
    order: Literal["new", "old"] = "new",
    limits: dict[str, int] | None = None,
    box: tuple[int, float] = (1, 2.0),
    either: int | list[int] = 0,
) -> str:
    """Searches.

    Args:
        query: What for.
        count: How many.
        weight: Of what.
        exact: Whether exactly.
        words: Some words.
        order: In which order.
        limits: Some limits.
        box: A pair.
        either: One or several.
    """
    return query


async def wait(seconds: float) -> None:
    """Waits.

    Args:
        seconds: How long.
    """
    await asyncio.sleep(seconds)


# --- describing ------------------------------------------------------------------------------------------------------


def test_functions_are_tools():
    toolbox = Toolbox([search, wait])
    assert list(toolbox) == ["search", "wait"] and len(toolbox) == 2
    assert [schema["function"]["name"] for schema in toolbox.schemas] == ["search", "wait"]
    assert (toolbox["search"].is_async, toolbox["wait"].is_async) == (False, True)
    assert toolbox["search"].function is search
    assert toolbox["search"].schema["function"]["parameters"]["required"] == ["query"]


def without_hint(query):
    """Searches.

    Args:
        query: What for.
    """


def without_docstring(query: str): ...


def without_line(query: str, count: int):
    """Searches.

    Args:
        query: What for.
    """


def with_many(*words: str):
    """Searches.

    Args:
        words: What for.
    """


def with_odd_type(when: datetime.date):
    """Searches.

    Args:
        when: A day.
    """


def _hidden():
    """Searches."""


@pytest.mark.parametrize(
    ("function", "error", "pieces"),
    [
        (without_hint, ValueError, ["'without_hint'", "'query'", "type hint"]),
        (without_docstring, ValueError, ["'without_docstring'", "docstring"]),
        (without_line, ValueError, ["'without_line'", "count", "Args:"]),
        (with_many, ValueError, ["'with_many'", "'words'", "by name"]),
        (with_odd_type, ValueError, ["'with_odd_type'", "datetime.date"]),
        (_hidden, ValueError, ["'_hidden'", "underscore"]),
        (lambda query: query, ValueError, ["<lambda>", "def name"]),
        (functools.partial(search, count=1), TypeError, ["partial", "function"]),
        ("search", TypeError, ["'search'", "str"]),
        (dict, TypeError, ["dict", "type"]),
        (max, TypeError, ["max", "builtin_function_or_method"]),
    ],
)
def test_what_cannot_be_a_tool_is_named(function, error, pieces):
    with raises_naming(error, *pieces):
        Toolbox([function])


def test_names_are_unique():
    with raises_naming(ValueError, "'search'", "rename"):
        Toolbox([search, search])


# --- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {"query": "a"},
        {"query": "", "count": 0, "weight": 2, "exact": True, "words": ["a"], "order": "old"},
        {"query": "a", "words": None, "limits": {"a": 1}, "box": [1, 2], "either": [1], "weight": 0.5},
    ],
)
def test_arguments_that_fit(arguments):
    assert Toolbox([search]).check_arguments("search", arguments) is None


@pytest.mark.parametrize(
    ("arguments", "pieces"),
    [
        ({}, ["'query'", "needs", "count"]),
        ({"query": "a", "limit": 3}, ["'limit'", "no argument"]),
        ({"query": 3}, ["'query'", "a string", "3"]),
        ({"query": None}, ["'query'", "null"]),
        ({"query": "a", "count": "3"}, ["'count'", "a whole number", "'3'"]),
        ({"query": "a", "count": True}, ["'count'", "true"]),
        ({"query": "a", "count": 3.0}, ["'count'", "3.0"]),
        ({"query": "a", "weight": False}, ["'weight'", "a number", "false"]),
        ({"query": "a", "exact": 1}, ["'exact'", "true or false", "1"]),
        ({"query": "a", "words": "a"}, ["'words'", "a list or null", "'a'"]),
        ({"query": "a", "words": ["a", 1]}, ["'words'", "item 1", "a string"]),
        ({"query": "a", "order": "best"}, ["'order'", "'new', 'old'", "'best'"]),
        ({"query": "a", "limits": {"a": "b"}}, ["'limits'", "the value of 'a'"]),
        ({"query": "a", "box": [1]}, ["'box'", "a list of 2"]),
        ({"query": "a", "box": ["1", 2]}, ["'box'", "item 0"]),
        ({"query": "a", "either": "1"}, ["'either'", "a whole number or a list"]),
        ({"query": "a" * 1000, "count": "b" * 1000}, ["'count'", "b" * 40 + "'..."]),
    ],
)
def test_arguments_that_do_not_fit_get_a_sentence(arguments, pieces):
    sentence = Toolbox([search]).check_arguments("search", arguments)
    assert_names(sentence, *pieces)
    assert sentence.endswith(".") and len(sentence) < 300


def test_an_unknown_tool_gets_a_sentence():
    assert_names(Toolbox([search, wait]).check_arguments("serach", {}), "'serach'", "search, wait")
    assert_names(Toolbox().check_arguments("search", {}), "'search'", "no tools")


# --- environments ----------------------------------------------------------------------------------------------------


class Game:
    """A game."""

    size = 3

    def __init__(self, start: int = 0):
        self.position = start

    def move(self, by: int) -> int:
        """Moves.

        Args:
            by: How far.
        """
        self.position += by
        return self.position

    async def rest(self) -> None:
        """Rests."""

    @staticmethod
    def rules() -> str:
        """Tells the rules."""
        return "None."

    @property
    def secret(self) -> int:
        raise RuntimeError("read")

    def reset(self, **row) -> None: ...

    def get_reward(self) -> float: ...

    def respond(self, turn): ...

    def _inner(self): ...


class BiggerGame(Game):
    def jump(self) -> int:
        """Jumps."""
        return self.move(10)


@pytest.mark.parametrize("environment", [Game, Game()])
def test_public_methods_of_an_environment_are_tools(environment):
    toolbox = Toolbox(public_methods(environment))
    assert list(toolbox) == ["move", "rest", "rules"]
    assert toolbox["move"].schema["function"]["parameters"]["required"] == ["by"]
    assert toolbox["rest"].is_async
    assert toolbox["rules"].function() == "None."


def test_inherited_methods_belong_to_their_instance():
    first, second = BiggerGame(1), BiggerGame(100)
    boxes = [Toolbox(public_methods(game)) for game in (first, second)]
    assert [list(box) for box in boxes] == [["move", "rest", "rules", "jump"]] * 2
    assert [box["jump"].function() for box in boxes] == [11, 110]
    assert (first.position, second.position) == (11, 110)


# --- results ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Point:
    x: int
    tags: set


class Color(enum.Enum):
    RED = "red"


class Plain:
    pass


class Broken:
    def __str__(self):
        raise KeyError("no text")

    def __getattr__(self, name):
        raise RuntimeError(name)


class BrokenMapping(dict):
    def items(self):
        raise OSError("gone")


circle: list = []
circle.append(circle)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is\n", "as it is\n"),
        (b"caf\xc3\xa9 \xff", "café \ufffd"),
        (None, "null"),
        (True, "true"),
        (2.5, "2.5"),
        (float("nan"), "NaN"),
        ({"a": [1, None, {2, 1}], 3: ("ü",), None: b"x"}, '{"a": [1, null, [1, 2]], "3": ["ü"], "null": "x"}'),
        ({"b", "a"}, '["a", "b"]'),
        ({"b", 2, 10, None}, '[2, 10, "b", null]'),
        (Point(1, {2}), '{"x": 1, "tags": [2]}'),
        (Color.RED, "red"),
        (numpy.float32(1.5), "1.5"),
        (numpy.arange(3), "[0, 1, 2]"),
        (torch.ones(2, requires_grad=True), "[1.0, 1.0]"),
        (datetime.date(2020, 1, 2), "2020-01-02"),
        (ValueError("a reason"), "a reason"),
        ([Plain()], '["<test_tools.Plain>"]'),
        ((n for n in range(3)), "<generator object <genexpr>>"),
        ([Broken(), 1], '["<Broken, which cannot be read: RuntimeError>", 1]'),
        (BrokenMapping(), "<BrokenMapping, which cannot be read: OSError>"),
        (10**5000, "<a whole number of 16610 bits>"),
        ("\ud83d half", "? half"),
        (circle, "[" * 20 + '"..."' + "]" * 20),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_result_has_a_text(value, text):
    assert result_text(value) == text


def test_long_results_are_cut_before_anybody_encodes_them():
    assert result_text("a" * 10_000_000) == "a" * 1_000_000
    assert result_text(b"a" * 10_000_000, 10) == "a" * 10
    assert result_text([list(range(100))] * 1000, 12) == "[[0, 1, 2, 3"
