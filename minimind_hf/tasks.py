# SPDX-License-Identifier: Apache-2.0
"""reasoning-gym's tasks: over a hundred procedurally generated problems, each with its own scorer.

A task is named by a string, `reasoning_gym:NAME,size=500,difficulty=2,max_terms=3`: `size` problems, the levels of the
task's curriculum up to `difficulty`, and any field of the task's own config. A problem is a pure function of that
string and its number, so that prompts carry no more than both and the scorer makes the problem anew. The package is
optional (`pip install minimind-hf[reasoning-gym]`).
"""

import importlib
import json
from dataclasses import dataclass, field, fields
from functools import lru_cache
from types import ModuleType
from typing import Any

PREFIX = "reasoning_gym:"
_HELD_OUT_SEED = (
    1_000_003  # between the problems of the splits; those that occur in both are left out of the test split
)


class TaskError(ValueError):
    """A task that cannot be made."""


@dataclass(frozen=True)
class TaskSpec:
    """A task of reasoning-gym.

    Args:
        name (`str`): Its name there.
        size (`int`): Problems of each split.
        seed (`int`): Of the problems to train on.
        difficulty (`int`, *optional*): Level of the task's curriculum; unset, its config's own values.
        system (`str`, *optional*): Name of one of reasoning-gym's system prompts.
        options (`tuple[tuple[str, Any], ...]`): Fields of its config.
    """

    name: str
    size: int = 500
    seed: int = 0
    difficulty: int | None = None
    system: str | None = None
    options: tuple[tuple[str, Any], ...] = field(default=())


def parse_task(source: str) -> TaskSpec:
    """Reads the string that names a task.

    Raises:
        TaskError: If it is no such string.
    """
    name, *pairs = source.removeprefix(PREFIX).split(",")
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not name or not equals or not key.strip():
            raise TaskError(
                f"{source!r} does not name a task: write {PREFIX}NAME,KEY=VALUE,..., for example "
                f"{PREFIX}chain_sum,size=500,difficulty=1."
            )
        values[key.strip()] = _value(text.strip())
    own = {key: values.pop(key) for key in ("size", "seed", "difficulty", "system") if key in values}
    for key in ("size", "seed", "difficulty"):
        if key in own and (not isinstance(own[key], int) or own[key] < (1 if key == "size" else 0)):
            raise TaskError(f"{source!r}: {key} is {own[key]!r}; it must be a whole number, of size at least 1.")
    return TaskSpec(name, options=tuple(sorted(values.items())), **own)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return {"True": True, "False": False, "None": None}.get(text, text)


@lru_cache(maxsize=32)
def make_task(spec: TaskSpec, held_out: bool = False) -> Any:
    """Makes the problems of a split.

    Returns:
        A data set of reasoning-gym, in which problems are made when they are asked for.

    Raises:
        TaskError: If the package is not installed, or there is no such task, option or level.
    """
    gym = _package()
    if spec.name not in gym.factory.DATASETS:
        near = [name for name in sorted(gym.factory.DATASETS) if spec.name[:4] in name][:8]
        raise TaskError(
            f"reasoning-gym has no task {spec.name!r}{f'; near it are {near}' if near else ''}. See "
            "reasoning_gym.factory.DATASETS for all of them."
        )
    config = {**_difficulty(gym, spec), **dict(spec.options), "size": spec.size}
    known = {each.name for each in fields(gym.factory.DATASETS[spec.name][1])}
    unknown = sorted(set(config) - known)
    if unknown:
        raise TaskError(f"The task {spec.name!r} has no option {unknown[0]!r}; it has {sorted(known - {'seed'})}.")
    try:
        return gym.create_dataset(spec.name, seed=spec.seed + held_out * _HELD_OUT_SEED, **config)
    except (AssertionError, TypeError, ValueError) as error:
        raise TaskError(
            f"The options of the task {spec.name!r} do not fit together: {error}. Change {config}."
        ) from error


def _difficulty(gym: ModuleType, spec: TaskSpec) -> dict[str, Any]:
    if spec.difficulty is None:
        return {}
    if not gym.factory.has_curriculum(spec.name):
        raise TaskError(
            f"The task {spec.name!r} has no curriculum, so no difficulty. Set fields of its config instead."
        )
    curriculum = gym.factory.create_curriculum(spec.name)
    for name, attribute in curriculum.attributes.items():
        curriculum.set_attr_level(name, min(spec.difficulty, len(attribute.levels) - 1))
    config = curriculum.generate_configuration({"size": spec.size})
    return {each.name: getattr(config, each.name) for each in fields(config) if each.name not in ("seed", "size")}


def system_prompt(spec: TaskSpec) -> str | None:
    """The text of the system prompt that the spec names.

    Raises:
        TaskError: If there is none of this name.
    """
    if spec.system is None:
        return None
    prompts = importlib.import_module("reasoning_gym.utils").SYSTEM_PROMPTS
    if spec.system not in prompts:
        raise TaskError(f"reasoning-gym has no system prompt {spec.system!r}; it has {sorted(prompts)}.")
    return prompts[spec.system]


def score_answer(spec: TaskSpec, held_out: bool, index: int, answer: str) -> float:
    """What the task's own scorer says of an answer to a problem."""
    task = make_task(spec, held_out)
    return float(task.score_answer(answer, task[index]))


def extract_answer(text: str) -> str:
    """What stands in the last `<answer>` block, else the whole text, stripped."""
    found = importlib.import_module("reasoning_gym.utils").extract_answer(text)
    return text.strip() if found is None else found


def _package() -> ModuleType:
    try:
        return importlib.import_module("reasoning_gym")
    except ImportError as error:
        raise TaskError(
            f"{PREFIX}... needs the package 'reasoning-gym', which cannot be imported ({error}). Install it with: "
            "pip install 'minimind-hf[reasoning-gym]'"
        ) from error
