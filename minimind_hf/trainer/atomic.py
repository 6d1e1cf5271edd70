# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are whole or not there: written beside the others, then renamed into their place.

A process that is killed while it writes leaves its half in `_saving`, which no one takes for a checkpoint, and the
checkpoint before it as it was. Old checkpoints leave the same way: renamed first, then deleted.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accelerate import Accelerator
from transformers.trainer_utils import sort_checkpoints

STAGING = "_saving"  # names that begin so are not pushed to the Hub


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
    """
    staging = folder / STAGING
    if writes:
        shutil.rmtree(staging, ignore_errors=True)  # of a process that was killed
    accelerator.wait_for_everyone()
    yield staging
    accelerator.wait_for_everyone()
    if writes:
        _flush(staging / name)
        _move(staging / name, folder / name)
        shutil.rmtree(staging)
    accelerator.wait_for_everyone()


def clear_staging(folder: str | Path) -> None:
    """Removes what a process that was killed while it saved has left."""
    shutil.rmtree(Path(folder) / STAGING, ignore_errors=True)


def drop_old_checkpoints(folder: Path, limit: int | None, best: str | None) -> None:
    """Deletes the oldest checkpoints beyond a number; never the last one and never the best one.

    Args:
        folder (`Path`): Of the checkpoints.
        limit (`int`, *optional*): How many to keep. Unset or below 1: all.
        best (`str`, *optional*): Path of the best one.
    """
    if limit is None or limit < 1:
        return
    checkpoints = [Path(path) for path in sort_checkpoints(str(folder))]
    kept = {*checkpoints[-1:], *([Path(best)] if best else [])}
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
