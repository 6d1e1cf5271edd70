# SPDX-License-Identifier: Apache-2.0
"""Rewards that can be checked: mathematics, exact text, a regular expression, a JSON schema.

Each compares the answer part of a completion (after `</think>`) with a column of the data set and returns 1.0 or 0.0,
or `None` for a row without a reference, to which the signal does not apply. math-verify and jsonschema are optional
(`pip install minimind-hf[verify]`) and imported when they are needed.
"""

import importlib
import json
import re
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

from .columns import needs_columns
from .errors import RewardError
from .mathematics import expressions, is_broken
from .rules import Completion, answer_part, completion_text

_FINAL = "####"  # GSM8K's mark of the final answer
_SECONDS = 5
_FENCE = re.compile(r"^```(?:json)?\s*\n(.*?)\n?```$", re.DOTALL)


def optional_module(name: str, extra: str, needed_by: str) -> ModuleType:
    """Imports a package of an optional extra.

    Raises:
        RewardError: If it is not installed, with the command that installs it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RewardError(
            f"{needed_by} needs the package {name.partition('.')[0].replace('_', '-')!r}, which cannot be imported "
            f"({error}). Install it with: pip install 'minimind-hf[{extra}]'"
        ) from error


def final_answer(text: str) -> str:
    """The text after the last `####`, GSM8K's mark of the answer, up to the end of the line; else the whole text."""
    _, mark, answer = text.rpartition(_FINAL)
    return answer.strip().partition("\n")[0] if mark else text


def math_score(response: str, reference: str) -> float | None:
    """1.0 if the answer of a response equals the reference as mathematics, else 0.0.

    `1/2`, `0.5` and `\\frac{1}{2}` are equal, and so are `x + 1` and `1 + x`
    ([math-verify](https://github.com/huggingface/Math-Verify)). The answer is what follows `####`, or the last boxed
    or other expression of the text, each read whole, with or without delimiters such as `$`.

    Args:
        response (`str`): The completion's text.
        reference (`str`): The right answer, or a solution that ends with it.

    Returns:
        `float`, *optional*: `None` if the reference cannot be read as an expression.

    Raises:
        RewardError: If math-verify is not installed.
    """
    math_verify = optional_module("math_verify", "verify", "The reward 'math'")
    # Its time limit is an alarm, which only the main thread can set.
    seconds = _SECONDS if threading.current_thread() is threading.main_thread() else None
    gold = _parsed_reference(final_answer(reference), seconds)
    if not gold:
        return None
    answer = expressions(final_answer(answer_part(response)), seconds)
    return float(math_verify.verify(list(gold), answer, timeout_seconds=seconds))


@lru_cache(maxsize=4096)
def _parsed_reference(text: str, seconds: int | None) -> tuple:
    return () if is_broken(text) else tuple(expressions(text, seconds))


def exact_match_score(response: str, reference: str, *, ignore_case: bool = False) -> float:
    """1.0 if the answer is the reference, else 0.0. Runs of white space count as one space."""
    found, expected = (" ".join(final_answer(text).split()) for text in (answer_part(response), reference))
    return float(found.casefold() == expected.casefold() if ignore_case else found == expected)


def regex_score(response: str, pattern: str) -> float:
    """1.0 if the pattern is found in the answer, else 0.0. Anchor it (`^...$`) to match the whole answer."""
    return float(_compiled(pattern).search(answer_part(response).strip()) is not None)


def json_schema_score(response: str, schema: dict[str, Any] | str) -> float:
    """1.0 if the answer is JSON that the schema allows, alone or in a ```json block, else 0.0.

    Args:
        response (`str`): The completion's text.
        schema (`dict` or `str`): A JSON schema, or its text.

    Returns:
        `float`.

    Raises:
        RewardError: If jsonschema is not installed, or the schema is not valid.
    """
    validator = _validator(schema if isinstance(schema, str) else json.dumps(schema, sort_keys=True))
    text = answer_part(response).strip()
    fenced = _FENCE.match(text)
    try:
        value = json.loads(fenced.group(1) if fenced else text)
    except (json.JSONDecodeError, RecursionError):
        return 0.0
    return float(validator.is_valid(value))


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise RewardError(f"{pattern!r} is not a valid regular expression ({error}). Correct it.") from error


@lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    jsonschema = optional_module("jsonschema", "verify", "The reward 'json_schema'")
    try:
        content = json.loads(schema)
        kind = jsonschema.validators.validator_for(content)
        kind.check_schema(content)
    except (json.JSONDecodeError, jsonschema.SchemaError, AttributeError) as error:
        message = getattr(error, "message", error)
        raise RewardError(f"{schema[:200]!r} is not a valid JSON schema ({message}). Correct it.") from error
    return kind(content)


def _scores(
    name: str, columns: tuple[str, ...], references: Sequence[Sequence | None], completions, score: Callable
) -> list[float | None]:
    """Scores completions against the first of the columns that the data set has."""
    given = next((values for values in references if values is not None), None)
    if given is None:
        raise RewardError(
            f"The reward {name!r} compares completions with the column {' or '.join(map(repr, columns))}, which the "
            "data set does not have. Rename yours, for example with dataset.rename_column('label', 'answer')."
        )
    texts = [completion_text(completion) for completion in completions]
    return [None if value is None else score(text, value) for text, value in zip(texts, given, strict=True)]


@needs_columns("answer", "solution")
def math_reward(
    completions: list[Completion], answer: list[str] | None = None, solution: list[str] | None = None, **columns: Any
) -> list[float | None]:
    """[`math_score`] of each completion against the column `answer` or `solution`."""
    return _scores("math", ("answer", "solution"), (answer, solution), completions, lambda t, r: math_score(t, str(r)))


@needs_columns("answer")
def exact_match_reward(
    completions: list[Completion], answer: list[str] | None = None, *, ignore_case: bool = False, **columns: Any
) -> list[float | None]:
    """[`exact_match_score`] of each completion against the column `answer`."""
    return _scores(
        "exact_match",
        ("answer",),
        (answer,),
        completions,
        lambda text, reference: exact_match_score(text, str(reference), ignore_case=ignore_case),
    )


@needs_columns("pattern")
def regex_reward(
    completions: list[Completion], pattern: list[str] | str | None = None, **columns: Any
) -> list[float | None]:
    """[`regex_score`] of each completion, for one pattern or the column `pattern`."""
    patterns = [pattern] * len(completions) if isinstance(pattern, str) else pattern
    return _scores("regex", ("pattern",), (patterns,), completions, regex_score)


@needs_columns("schema")
def json_schema_reward(
    completions: list[Completion], schema: list | dict[str, Any] | str | None = None, **columns: Any
) -> list[float | None]:
    """[`json_schema_score`] of each completion, for one schema or the column `schema`."""
    schemas = [schema] * len(completions) if isinstance(schema, str | dict) else schema
    return _scores("json_schema", ("schema",), (schemas,), completions, json_schema_score)


VERIFIABLE_REWARDS: dict[str, Callable[..., list[float | None]]] = {
    "math": math_reward,
    "exact_match": exact_match_reward,
    "regex": regex_reward,
    "json_schema": json_schema_reward,
}
"""The verifiable rewards by name."""
