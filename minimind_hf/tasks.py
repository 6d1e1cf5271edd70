# SPDX-License-Identifier: Apache-2.0
"""reasoning-gym's tasks: over a hundred kinds of procedurally generated problems, each with its own scorer.

A string names a task, `reasoning_gym:NAME,size=500,difficulty=2,max_terms=3`: `size` problems, the levels of the
task's curriculum up to `difficulty`, and any field of the task's config; lists are written `operators=[+,-]`. A
problem is a pure function of this string and its number, so prompts carry only these two and the scorer creates the
problem again. The package is optional (`pip install minimind-hf[reasoning-gym]`).
"""

import importlib
import json
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import Enum
from functools import lru_cache
from types import ModuleType
from typing import Any

PREFIX = "reasoning_gym:"
_HELD_OUT_SEED = (
    1_000_003  # offset between the seeds of the splits; problems that occur in both are left out of the test split
)


class TaskError(ValueError):
    """A task that cannot be created."""


@dataclass(frozen=True)
class TaskSpec:
    """A task of reasoning-gym.

    Args:
        name (`str`): Name of the task in reasoning-gym.
        size (`int`): Problems per split.
        seed (`int`): Seed of the training problems.
        difficulty (`int`, *optional*): Level of the task's curriculum. Default: the values of its config.
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
    """Parses the string that names a task.

    Raises:
        TaskError: If the string does not name a task.
    """
    name, *pairs = _split(source.removeprefix(PREFIX), source)
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not name or not equals or not key.strip():
            raise TaskError(
                f"{source!r} does not name a task: write {PREFIX}NAME,KEY=VALUE,..., for example "
                f"{PREFIX}chain_sum,size=500,difficulty=1."
            )
        values[key.strip()] = _value(text.strip(), source)
    own = {key: values.pop(key) for key in ("size", "seed", "difficulty", "system") if key in values}
    for key in ("size", "seed", "difficulty"):
        if key in own and (not isinstance(own[key], int) or own[key] < (1 if key == "size" else 0)):
            raise TaskError(f"{source!r}: {key} is {own[key]!r}; it must be a whole number, of size at least 1.")
    return TaskSpec(name, options=tuple(sorted(values.items())), **own)


def _split(text: str, source: str) -> list[str]:
    """Splits at the commas outside lists."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[{") - (character in "]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
        if depth < 0:
            break
    if depth != 0:
        raise TaskError(f"{source!r} does not name a task: its brackets do not match. Write a list as [A,B].")
    return parts


def _value(text: str, source: str) -> Any:
    """Parses a value: JSON, a list of bare words, or a word. Lists become tuples, which are hashable."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        if text.startswith("[") and text.endswith("]"):
            return tuple(_value(part.strip(), source) for part in _split(text[1:-1], source))
        return {"True": True, "False": False, "None": None}.get(text, text)
    return _hashable(value, source)


def _hashable(value: Any, source: str) -> Any:
    if isinstance(value, dict):
        raise TaskError(
            f"{source!r}: {value} is a mapping, which is not supported as an option. Use a task without it."
        )
    return tuple(_hashable(item, source) for item in value) if isinstance(value, list) else value


@lru_cache(maxsize=32)
def make_task(spec: TaskSpec, held_out: bool = False) -> Any:
    """Creates the problems of a split.

    Returns:
        A data set of reasoning-gym, which creates problems when they are accessed.

    Raises:
        TaskError: If the package is not installed, or the task, an option or the level does not exist.
    """
    gym = _package()
    if spec.name not in gym.factory.DATASETS:
        near = [name for name in sorted(gym.factory.DATASETS) if spec.name[:4] in name][:8]
        raise TaskError(
            f"reasoning-gym has no task {spec.name!r}{f'; similar names are {near}' if near else ''}. See "
            "reasoning_gym.factory.DATASETS for all of them."
        )
    known = {each.name: each for each in fields(gym.factory.DATASETS[spec.name][1])}
    config = {**_difficulty(gym, spec), **dict(spec.options), "size": spec.size}
    unknown = sorted(set(config) - set(known))
    if unknown:
        raise TaskError(
            f"The task {spec.name!r} has no option {unknown[0]!r}; it has {sorted(set(known) - {'seed'})}."
        )
    try:
        config |= {name: _fitting(known[name], value) for name, value in spec.options}
        return gym.create_dataset(spec.name, seed=spec.seed + held_out * _HELD_OUT_SEED, **config)
    except (AssertionError, TypeError, ValueError) as error:
        raise TaskError(
            f"The options of the task {spec.name!r} do not fit together: {error}. Change {config}."
        ) from error


def _fitting(option: Field, value: Any) -> Any:
    """Converts a list to the type in the config: a list or a tuple, of enumeration members if it has them."""
    default = option.default_factory() if option.default_factory is not MISSING else option.default
    is_list = isinstance(default, list | tuple)
    if not isinstance(value, tuple):
        if is_list and value is not None:
            raise ValueError(f"{option.name} is a list, so write {option.name}=[{value}]")
        return value
    kind = type(default[0]) if is_list and default else None
    if kind is not None and issubclass(kind, Enum):
        value = tuple(kind(item) for item in value)
    return value if isinstance(default, tuple) else list(value)


def _difficulty(gym: ModuleType, spec: TaskSpec) -> dict[str, Any]:
    if spec.difficulty is None:
        return {}
    if not gym.factory.has_curriculum(spec.name):
        raise TaskError(
            f"The task {spec.name!r} has no curriculum, so it takes no difficulty={spec.difficulty}. "
            "Set fields of its config instead."
        )
    curriculum = gym.factory.create_curriculum(spec.name)
    for name, attribute in curriculum.attributes.items():
        curriculum.set_attr_level(name, min(spec.difficulty, len(attribute.levels) - 1))
    config = curriculum.generate_configuration({"size": spec.size})
    return {each.name: getattr(config, each.name) for each in fields(config) if each.name not in ("seed", "size")}


def system_prompt(spec: TaskSpec) -> str | None:
    """Returns the text of the system prompt named in the spec.

    Raises:
        TaskError: If there is none with this name.
    """
    if spec.system is None:
        return None
    prompts = importlib.import_module("reasoning_gym.utils").SYSTEM_PROMPTS
    if spec.system not in prompts:
        raise TaskError(f"reasoning-gym has no system prompt {spec.system!r}; it has {sorted(prompts)}.")
    return prompts[spec.system]


def score_answer(spec: TaskSpec, held_out: bool, index: int, answer: str) -> float:
    """Returns the reward that the task's own scorer gives to an answer."""
    task = make_task(spec, held_out)
    return float(task.score_answer(answer, task[index]))


def extract_answer(text: str) -> str:
    """Returns the content of the last `<answer>` block, or else the whole text, stripped."""
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
