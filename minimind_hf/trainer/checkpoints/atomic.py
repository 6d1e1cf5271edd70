# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are whole or absent: they are written next to the others, then renamed into place.

A process that is killed while it writes leaves its part in `_saving`, which nothing takes for a checkpoint, and does
not change the checkpoint before. Old checkpoints are removed the same way: first renamed, then deleted.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accelerate import Accelerator
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, sort_checkpoints

from .best import is_same_folder
from .checksums import write_checksums

STAGING = "_saving"  # names that begin like this are not pushed to the Hub


class CheckpointNotSavedError(RuntimeError):
    """A checkpoint could not be written. Those before it are unchanged."""


@contextmanager
def committed(folder: Path, name: str, accelerator: Accelerator, writes: bool) -> Iterator[Path]:
    """Yields a folder for the checkpoint, which is moved into place at the end.

    Args:
        folder (`Path`): The folder of the checkpoint.
        name (`str`): Name of the checkpoint.
        accelerator: Every process enters the context. The checkpoint is moved when all have written.
        writes (`bool`): Whether this process moves it.

    Yields:
        `Path`: The folder in which to make `name`.

    Raises:
        CheckpointNotSavedError: With what could not be written and why. What was written is deleted.
    """
    staging = folder / STAGING
    if writes:
        clear_staging(folder)
    accelerator.wait_for_everyone()
    try:
        yield staging
        accelerator.wait_for_everyone()
        if writes:
            write_checksums(staging / name)
            _flush(staging / name)
            _move(staging / name, folder / name)
            shutil.rmtree(staging)
    except BaseException as error:
        if writes:
            clear_staging(folder)  # frees the space on a full disk
        if isinstance(error, Exception):
            raise CheckpointNotSavedError(_not_saved(folder, name, error)) from error
        raise
    accelerator.wait_for_everyone()


def _not_saved(folder: Path, name: str, error: Exception) -> str:
    step = name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-")
    before = checkpoints_by_age(folder) if folder.is_dir() else []
    remedy = f"continue with --resume_from_checkpoint {before[-1]}" if before else "start again"
    return (
        f"{folder / name}, the checkpoint of step {step}, could not be written: {type(error).__name__}: {error}. "
        "What was written is deleted. Make sure that the disk has room (save_total_limit keeps fewer checkpoints) and "
        f"that {folder} is writable, then {remedy}."
    )


def clear_staging(folder: str | Path) -> None:
    """Removes what a process left that was killed while it saved."""
    shutil.rmtree(Path(folder) / STAGING, ignore_errors=True)


def checkpoints_by_age(folder: str | Path) -> list[Path]:
    """Returns the checkpoints of a folder, the newest last."""
    by_step = [Path(path) for path in sort_checkpoints(str(folder))]
    return sorted(by_step, key=lambda path: path.stat().st_mtime_ns)


def drop_old_checkpoints(folder: Path, limit: int | None, best: str | None, newest: str) -> None:
    """Deletes the oldest checkpoints beyond a limit. Age decides, because an earlier run may have made more steps.

    Args:
        folder (`Path`): The folder of the checkpoints.
        limit (`int`, *optional*): Number of checkpoints to keep. Unset or below 1: all.
        best (`str`, *optional*): Path of the best checkpoint, which is kept.
        newest (`str`): Name of the checkpoint that was just written, which is kept.
    """
    if limit is None or limit < 1:
        return
    checkpoints = checkpoints_by_age(folder)
    is_best = (path for path in checkpoints if best is not None and is_same_folder(path, best))
    kept = {folder / newest, *is_best}
    surplus = len(checkpoints) - max(limit, len(kept))
    staging = folder / STAGING
    for checkpoint in [path for path in checkpoints if path not in kept][: max(surplus, 0)]:
        staging.mkdir(exist_ok=True)
        _move(checkpoint, staging / checkpoint.name)
    shutil.rmtree(staging, ignore_errors=True)


def _flush(folder: Path) -> None:
    """Flushes everything to the disk: a name must not get there before its contents."""
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _move(source: Path, target: Path) -> None:
    if target.exists():  # a resumed run reaches a step again that it saved before
        replaced = source.with_name(f"replaced-{target.name}")
        os.rename(target, replaced)
        os.rename(source, target)
        shutil.rmtree(replaced)
    else:
        os.rename(source, target)
