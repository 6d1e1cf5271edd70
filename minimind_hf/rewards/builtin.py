# SPDX-License-Identifier: Apache-2.0
"""The rewards that have a name: the rules, the verifiable rewards and reasoning-gym's.

Two names take a value that applies to every row of the data set: `regex=PATTERN` and `json_schema=FILE`.
"""

import difflib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from .errors import RewardError
from .reasoning_gym import reasoning_gym_reward
from .rules import REWARD_FUNCTIONS
from .verifiable import VERIFIABLE_REWARDS, json_schema_reward, json_schema_score, regex_reward, regex_score

BUILT_IN_REWARDS: dict[str, Callable[..., Any]] = {
    **REWARD_FUNCTIONS,
    **VERIFIABLE_REWARDS,
    "reasoning_gym": reasoning_gym_reward,
}
_SIMILAR = 0.75  # difflib's ratio: 'lenght' and 'length' have 0.83, 'gpt2' 0.4


def built_in_reward(spec: str) -> Callable[..., Any] | None:
    """Returns the reward of a name; `None` if it is not the name of a built-in one.

    Raises:
        RewardError: If the value after the name cannot be used.
    """
    name, equals, value = spec.partition("=")
    if equals and name == "regex":
        regex_score("", value)  # a wrong pattern fails now, not after the first rollout
        return partial(regex_reward, pattern=value)
    if equals and name == "json_schema":
        return partial(json_schema_reward, schema=_read_schema(value))
    return BUILT_IN_REWARDS.get(spec) or _by_function_name().get(spec)


def similar_name(spec: str) -> str | None:
    """Returns the name that a misspelled one resembles; `None` if there is none, or it has an owner as on the hub."""
    word = spec.partition("=")[0]
    if "/" in word:
        return None
    word = word.lower().replace("-", "_")
    names = [*BUILT_IN_REWARDS, *_by_function_name()]
    return next(iter(difflib.get_close_matches(word, names, n=1, cutoff=_SIMILAR)), None)


def _by_function_name() -> dict[str, Callable[..., Any]]:
    return {function.__name__: function for function in BUILT_IN_REWARDS.values()}


def _read_schema(path: str) -> str:
    try:
        schema = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise RewardError(
            f"json_schema={path}: the file cannot be read ({error}). Give the file of a JSON schema."
        ) from error
    json_schema_score("", schema)
    return schema
