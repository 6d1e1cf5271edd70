# SPDX-License-Identifier: Apache-2.0
"""Flags that every recipe has, parsed and checked before anything is loaded."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import yaml
from transformers import TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from minimind_hf.data import PromptError

CONFIG = "--config"
RECIPES = Path(__file__).resolve().parent


def separate_config(arguments: Sequence[str]) -> list[str]:
    """Returns the flags with `--config=FILE` spelled `--config FILE`, the only form that trl's parser knows.

    A file that is not there may be one of those beside the recipes, by its name: `grpo_minimind.yaml`.

    Raises:
        ValueError: If it is given twice or without a file, or if the file does not exist or is not a mapping.
    """
    flags: list[str] = []
    for flag in arguments:
        flags += [CONFIG, flag.removeprefix(f"{CONFIG}=")] if flag.startswith(f"{CONFIG}=") else [flag]
    if flags.count(CONFIG) > 1:
        raise ValueError(f"{CONFIG} is given {flags.count(CONFIG)} times. Put all settings in one file.")
    if CONFIG in flags[:-1]:
        name = flags[flags.index(CONFIG) + 1]
        beside = RECIPES / name.removeprefix("recipes/")
        if not Path(name).exists() and beside.is_file():
            flags[flags.index(CONFIG) + 1] = str(beside)
    split_config(flags)
    return flags


def split_config(flags: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Returns the flags without `--config FILE`, and the settings in its file."""
    rest = list(flags)
    if CONFIG not in rest:
        return rest, {}
    position = rest.index(CONFIG)
    name = next(iter(rest[position + 1 :]), "")
    del rest[position : position + 2]
    return rest, _read_settings(name)


def check_kinds(flags: Sequence[str], *classes: type) -> None:
    """Refuses values in the yaml file that are null, or no list or mapping, where the setting needs one.

    Raises:
        ValueError: Naming the setting, its value and what it may be.
    """
    hints = {name: hint for kind in classes for name, hint in get_type_hints(kind).items()}
    for name, value in split_config(flags)[1].items():
        if name not in hints or hints[name] is Any:
            continue
        if value is None:
            _refuse_null(name, hints[name], classes)
        else:
            _refuse_other_kind(name, value, hints[name])


def _refuse_null(name: str, hint: Any, classes: Sequence[type]) -> None:
    found = next(each for kind in classes for each in fields(kind) if each.name == name)
    default = found.default if found.default_factory is MISSING else found.default_factory()
    takes_none = type(None) in get_args(hint) and name != "report_to"  # transformers declares it, but cannot read it
    if not takes_none and default is not None:
        raise ValueError(
            f"{name} is null in the file of {CONFIG}, but needs a value. Leave the line out for the default "
            f"({default!r})."
        )


def _refuse_other_kind(name: str, value: Any, hint: Any) -> None:
    parts = [part for part in (get_args(hint) if get_origin(hint) in (Union, UnionType) else [hint])]
    kinds = {get_origin(part) or part for part in parts} - {type(None)}
    if kinds == {str} and not isinstance(value, str):
        raise ValueError(f"{name} is {value!r} in the file of {CONFIG}. Give a text; put a number in quotes.")
    if not kinds & {list, dict} or not kinds <= {list, dict, str}:
        return
    numbers = any(get_origin(part) is list and set(get_args(part)) <= {int, float} for part in parts)
    single = isinstance(value, int | float) and not isinstance(value, bool) and numbers
    if not isinstance(value, (str, *kinds)) and not single:
        example = (
            f"a mapping, for example {name}: {{key: value}}" if kinds >= {dict} else f"a list, as in {name}: [...]"
        )
        raise ValueError(f"{name} is {value!r} in the file of {CONFIG}. Give {example}.")


def _read_settings(name: str) -> dict[str, Any]:
    path = Path(name)
    if not path.is_file():
        raise ValueError(f"{CONFIG}: there is no file {name!r} (looked in {Path.cwd()}). Give a yaml file.")
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{CONFIG} {path} is not valid yaml in UTF-8 ({error}). Correct the file.") from error
    if not isinstance(settings, dict):
        found = "is empty" if settings is None else f"holds a {type(settings).__name__}"
        raise ValueError(f"{CONFIG} {path} {found}. Write one setting per line, for example 'learning_rate: 1e-5'.")
    return settings


def prepare_resume(args: TrainingArguments) -> None:
    """Turns 'true' and 'false' of `--resume_from_checkpoint` into booleans, and refuses missing checkpoints.

    Raises:
        ValueError: If the folder does not exist, or the output folder holds no checkpoint.
    """
    wanted = args.resume_from_checkpoint
    if isinstance(wanted, str) and wanted.lower() in ("true", "false"):
        wanted = args.resume_from_checkpoint = wanted.lower() == "true"
    if wanted is True:
        if not Path(args.output_dir).is_dir() or get_last_checkpoint(args.output_dir) is None:
            raise ValueError(
                f"--resume_from_checkpoint true: {args.output_dir} holds no checkpoint-N folder to continue from. "
                "Check --output_dir, or leave the flag out to start from the beginning."
            )
    elif wanted and not Path(wanted).is_dir():
        raise ValueError(f"--resume_from_checkpoint {wanted}: there is no such folder. Give a checkpoint-N folder.")


def will_evaluate(args: TrainingArguments) -> bool:
    """Whether a run with these settings needs evaluation data."""
    return args.eval_strategy != "no" or args.eval_on_start


@contextmanager
def explaining_evaluation() -> Iterator[None]:
    """Adds to an error about evaluation data why they are needed and which flags name them."""
    try:
        yield
    except PromptError as error:
        raise PromptError(
            f"{error} --eval_strategy and --eval_on_start need evaluation data: name other data with "
            "--eval_dataset_name, or a split with --dataset_test_split ('train[90%:]', and then 'train[:90%]' "
            "as --dataset_train_split)."
        ) from error
