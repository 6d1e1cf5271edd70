# SPDX-License-Identifier: Apache-2.0
"""Flags that every recipe has, made ready and checked before anything is loaded."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from transformers import TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from minimind_hf.data import PromptError

CONFIG = "--config"


def separate_config(arguments: Sequence[str]) -> list[str]:
    """The same flags with `--config=FILE` as `--config FILE`, the only spelling that trl's parser knows.

    Raises:
        ValueError: If it is given twice or without a file, or there is no such file, or it holds no mapping.
    """
    flags: list[str] = []
    for flag in arguments:
        flags += [CONFIG, flag.removeprefix(f"{CONFIG}=")] if flag.startswith(f"{CONFIG}=") else [flag]
    if flags.count(CONFIG) > 1:
        raise ValueError(f"{CONFIG} is given {flags.count(CONFIG)} times. Put all settings into one file.")
    split_config(flags)
    return flags


def split_config(flags: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Flags without `--config FILE`, and what its file says."""
    rest = list(flags)
    if CONFIG not in rest:
        return rest, {}
    position = rest.index(CONFIG)
    name = next(iter(rest[position + 1 :]), "")
    del rest[position : position + 2]
    return rest, _read_settings(name)


def _read_settings(name: str) -> dict[str, Any]:
    path = Path(name)
    if not path.is_file():
        raise ValueError(f"{CONFIG}: there is no file {name!r} (looked in {Path.cwd()}). Give a yaml file.")
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{CONFIG} {path}: no yaml in UTF-8 ({error}). Correct the file.") from error
    if not isinstance(settings, dict):
        found = "is empty" if settings is None else f"holds a {type(settings).__name__}"
        raise ValueError(f"{CONFIG} {path} {found}. Write one setting a line, for example 'learning_rate: 1e-5'.")
    return settings


def prepare_resume(args: TrainingArguments) -> None:
    """Makes 'true' and 'false' of `--resume_from_checkpoint` what `train` takes, and refuses what is not there.

    Raises:
        ValueError: If there is no such folder, or no checkpoint in the output folder.
    """
    wanted = args.resume_from_checkpoint
    if isinstance(wanted, str) and wanted.lower() in ("true", "false"):
        wanted = args.resume_from_checkpoint = wanted.lower() == "true"
    if wanted is True:
        if not Path(args.output_dir).is_dir() or get_last_checkpoint(args.output_dir) is None:
            raise ValueError(
                f"--resume_from_checkpoint true: {args.output_dir} holds no checkpoint-N folder to go on from. Check "
                "--output_dir, or leave the flag out to start anew."
            )
    elif wanted and not Path(wanted).is_dir():
        raise ValueError(f"--resume_from_checkpoint {wanted}: there is no such folder. Give a checkpoint-N folder.")


@contextmanager
def explaining_evaluation() -> Iterator[None]:
    """Says, where evaluation data cannot be loaded, why they are loaded and which flags name them."""
    try:
        yield
    except PromptError as error:
        raise PromptError(
            f"{error} It is what --eval_strategy would be evaluated on: name other data by --eval_dataset_name, or a "
            "split by --dataset_test_split ('train[90%:]', and then 'train[:90%]' as --dataset_train_split)."
        ) from error
