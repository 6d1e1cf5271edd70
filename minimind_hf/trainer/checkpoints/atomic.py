# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and records that are whole or not there: written beside the others, then renamed into their place.

A process that is killed while it writes leaves its half in `_saving`, which no one takes for a checkpoint, and the
checkpoint before it as it was. Old checkpoints leave the same way: renamed first, then deleted.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accelerate import Accelerator
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, sort_checkpoints

STAGING = "_saving"  # names that begin so are not pushed to the Hub


class CheckpointNotSavedError(RuntimeError):
    """A checkpoint could not be written; those before it are as they were."""


@contextmanager
def committed(folder: Path, name: str, accelerator: Accelerator, writes: bool) -> Iterator[Path]:
    """Yields a folder to write the checkpoint into; at the end it is moved to its place.

    Args:
        folder (`Path`): Gets the checkpoint.
        name (`str`): Of the checkpoint.
        accelerator: Every process enters the context; the checkpoint is moved once all have written.
        writes (`bool`): Whether this process moves it.

    Yields:
        `Path`: The folder in which `name` is to be made.

    Raises:
        CheckpointNotSavedError: Naming what could not be written and why. What was written of it is deleted.
    """
    staging = folder / STAGING
    if writes:
        clear_staging(folder)
    accelerator.wait_for_everyone()
    try:
        yield staging
        accelerator.wait_for_everyone()
        if writes:
            _flush(staging / name)
            _move(staging / name, folder / name)
            shutil.rmtree(staging)
    except BaseException as error:
        if writes:
            clear_staging(folder)  # a full disk gets its room back
        if isinstance(error, Exception):
            raise CheckpointNotSavedError(_not_saved(folder, name, error)) from error
        raise
    accelerator.wait_for_everyone()


def _not_saved(folder: Path, name: str, error: Exception) -> str:
    step = name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-")
    before = checkpoints_by_age(folder) if folder.is_dir() else []
    remedy = f"go on with --resume_from_checkpoint {before[-1]}" if before else "start again"
    return (
        f"{folder / name}, the checkpoint of step {step}, could not be written: {type(error).__name__}: {error}. "
        "What was written of it is deleted. See that the disk has room (save_total_limit keeps fewer checkpoints) "
        f"and that {folder} may be written to, then {remedy}."
    )


def clear_staging(folder: str | Path) -> None:
    """Removes what a process that was killed while it saved has left."""
    shutil.rmtree(Path(folder) / STAGING, ignore_errors=True)


def checkpoints_by_age(folder: str | Path) -> list[Path]:
    """Returns the checkpoints of a folder, that written last at the end."""
    by_step = [Path(path) for path in sort_checkpoints(str(folder))]
    return sorted(by_step, key=lambda path: path.stat().st_mtime_ns)


def drop_old_checkpoints(folder: Path, limit: int | None, best: str | None, newest: str) -> None:
    """Deletes the oldest checkpoints beyond a number, by age: an earlier run in this folder may have gone further.

    Args:
        folder (`Path`): Of the checkpoints.
        limit (`int`, *optional*): How many to keep. Unset or below 1: all.
        best (`str`, *optional*): Path of the best one, which stays.
        newest (`str`): Name of the one that was just written, which stays.
    """
    if limit is None or limit < 1:
        return
    checkpoints = checkpoints_by_age(folder)
    kept = {folder / newest, *([Path(best)] if best else [])}
    surplus = len(checkpoints) - max(limit, len(kept))
    staging = folder / STAGING
    for checkpoint in [path for path in checkpoints if path not in kept][: max(surplus, 0)]:
        staging.mkdir(exist_ok=True)
        _move(checkpoint, staging / checkpoint.name)
    shutil.rmtree(staging, ignore_errors=True)


def _flush(folder: Path) -> None:
    """Brings everything to the disk: a name must not get there before what it names."""
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _move(source: Path, target: Path) -> None:
    if target.exists():  # a resumed run comes by a step again that it had saved before
        replaced = source.with_name(f"replaced-{target.name}")
        os.rename(target, replaced)
        os.rename(source, target)
        shutil.rmtree(replaced)
    else:
        os.rename(source, target)
