# SPDX-License-Identifier: Apache-2.0
"""Which columns of the data set a reward function needs, so that a missing one is named before anything runs.

These are its parameters without a default, and those that it declares with [`needs_columns`] because one of several is
enough, or because a fixed value can replace the column.
"""

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any

from .errors import RewardError

OWN_ARGUMENTS = ("prompts", "completions", "completion_ids")
TRAINER_ARGUMENTS = ("trainer_state", "log_metric", "log_extra", "num_turns", "environments", "turn_rewards")


def needs_columns(*any_of: str) -> Callable[[Callable], Callable]:
    """Declares that a reward function needs one of these columns, even if its arguments have defaults."""

    def declare(function: Callable) -> Callable:
        function.needed_columns = [*getattr(function, "needed_columns", []), any_of]
        return function

    return declare


def parameters_of(function: Callable) -> dict[str, inspect.Parameter] | None:
    """Returns the parameters of a function; `None` if it has no signature, as some builtins and extension types."""
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None


def required_arguments(function: Callable) -> list[str]:
    """Returns the arguments without a default."""
    kinds = inspect.Parameter
    return [
        name
        for name, parameter in (parameters_of(function) or {}).items()
        if parameter.default is kinds.empty and parameter.kind not in (kinds.VAR_KEYWORD, kinds.VAR_POSITIONAL)
    ]


def check_columns(name: str, function: Callable, columns: Collection[str], given: Collection[str]) -> None:
    """Refuses data without a column that a reward function needs.

    Args:
        name (`str`): Of the function.
        function (`Callable`): The reward function.
        columns (`Collection[str]`): Columns of the data set that reward functions receive.
        given (`Collection[str]`): Other arguments that they receive.

    Raises:
        RewardError: Naming the function and the column.
    """
    there = {*columns, *given}
    missing = [(argument,) for argument in required_arguments(function) if argument not in there]
    missing += [any_of for any_of in _declared(function) if not there.intersection(any_of)]
    if missing:
        raise RewardError(
            f"The reward function {name!r} needs the argument {' or '.join(map(repr, missing[0]))}, which is not a "
            f"column of the data set; its other columns are {sorted(columns)}. Add the column or rename yours, for "
            f"example with dataset.rename_column('label', {missing[0][0]!r})."
        )


def check_reserved(columns: Collection[str], given: Collection[str]) -> None:
    """Refuses columns that have the name of an argument that reward functions receive.

    Raises:
        RewardError: Naming the column.
    """
    taken = sorted(set(columns) & set(given))
    if taken:
        raise RewardError(
            f"The column {taken[0]!r} of the data set has the name of an argument that every reward function "
            f"receives. Rename it, for example with `dataset.rename_column({taken[0]!r}, 'reference')`."
        )


def _declared(function: Any) -> list[tuple[str, ...]]:
    bound: set[str] = set()
    while isinstance(function, functools.partial):
        bound |= function.keywords.keys()
        function = function.func
    return [any_of for any_of in getattr(function, "needed_columns", []) if not bound.intersection(any_of)]
