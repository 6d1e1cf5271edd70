# SPDX-License-Identifier: Apache-2.0
"""The output folder of a run: one run at a time writes to it, and SIGTERM ends that run as Ctrl-C does."""

import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from accelerate import Accelerator
from accelerate.utils import is_peft_model
from filelock import FileLock, Timeout
from peft.utils import CONFIG_NAME as ADAPTER_CONFIG_NAME
from torch import nn
from transformers.trainer_utils import get_last_checkpoint
from transformers.utils import logging

from ...environment import Terminated
from ...language import Text, Texts
from ...rollout.agreement import failing_together

logger = logging.get_logger(__name__)

LOCK_FILE = "_run.lock"  # names that begin like this are not pushed to the Hub
SECONDS = 0.1  # enough to try again when a run is just ending
ON_WINDOWS = os.name == "nt"  # a lock keeps others from reading the file there, and filelock deletes it


class FolderInUseError(RuntimeError):
    """Another run is writing to this output folder."""


def refuse_left_adapters(folder: str | Path, model: nn.Module, further_models: Iterable[str] = ()) -> None:
    """Refuses to save whole weights beside adapters of an earlier run: a loader would put those on them.

    Args:
        folder (`str` or `Path`): The output folder.
        model (`nn.Module`): What is trained.
        further_models (`Iterable[str]`): Folders in it that hold other models of the run.

    Raises:
        ValueError: With the files to delete.
    """
    if is_peft_model(model):
        return
    for place in (Path(folder), *(Path(folder) / name for name in further_models)):
        if (place / ADAPTER_CONFIG_NAME).is_file():
            raise ValueError(
                f"{place} holds adapters of an earlier run, and this run saves whole weights: whoever loads the "
                f"folder would get both. Set another output_dir, or delete {ADAPTER_CONFIG_NAME} and adapter_model.* "
                "there."
            )


def last_checkpoint(folder: Path) -> Text:
    """Says where a run that has stopped can be resumed."""
    checkpoint = get_last_checkpoint(str(folder)) if folder.is_dir() else None
    if checkpoint is None:
        return Text("there is no checkpoint in the output folder yet, see save_steps")
    return Text("the last good checkpoint is {checkpoint}", checkpoint=checkpoint)


def interrupted(step: int, folder: Path) -> Texts:
    """What to tell the user who interrupted a run: the step that it came to, and how it goes on."""
    told = [Text("The run was interrupted at step {step}", step=step), last_checkpoint(folder)]
    if get_last_checkpoint(str(folder)):
        told.append(Text("--resume_from_checkpoint true goes on from it"))
    return Texts(*told, between="; ")


@contextmanager
def only_run_in(folder: str | Path) -> Iterator[None]:
    """Holds the folder for this run. The lock ends with the process, however that ends.

    Args:
        folder (`str` or `Path`): The output folder. It is made if it is missing.

    Raises:
        FolderInUseError: If another run holds the folder.
        ValueError: If the lock file is a link.
    """
    path, owner = Path(folder) / LOCK_FILE, os.getpid()
    lock = FileLock(path, timeout=SECONDS, fallback_to_soft=False)
    _acquire(lock, path)
    try:
        if lock.is_locked and not ON_WINDOWS:
            path.write_text(f"{owner}\n")
        yield
    finally:
        if os.getpid() == owner:  # a forked child does not hold it
            if not ON_WINDOWS:
                path.unlink(missing_ok=True)  # while it is held, so that no other run's file is deleted
            lock.release()


@contextmanager
def held_by_this_run(folder: str | Path, accelerator: Accelerator) -> Iterator[None]:
    """Locks the folder in the main process, on behalf of all processes; every process enters it."""
    with ExitStack() as held:
        with failing_together("claiming the output folder"):
            if accelerator.is_main_process:
                held.enter_context(only_run_in(folder))
        yield


def _acquire(lock: FileLock, path: Path) -> None:
    _refuse_link(path)
    try:
        lock.acquire()
    except Timeout as error:
        raise FolderInUseError(
            f"Another run is writing to {path.parent}{_holder(path)}. Two runs in one folder delete each other's "
            "checkpoints. Wait until it ends, or use another output_dir."
        ) from error
    except OSError as error:
        _refuse_link(path)
        if error.filename is not None:  # the file cannot be opened
            raise
        logger.warning("%s cannot be locked (%s): make sure that no other run writes to this folder.", path, error)


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise ValueError(
            f"{path} is a link to {os.readlink(path)}. The lock of a run is not written through links. Delete the "
            "link, or use another output_dir."
        )


def _holder(path: Path) -> str:
    if ON_WINDOWS:
        return ""
    try:
        process = path.read_text(errors="replace")[:32].strip()
    except FileNotFoundError:  # that run has just ended
        return ""
    return f" (process {process})" if process else ""


@contextmanager
def ending_in_order(leaves_something: bool = True) -> Iterator[None]:
    """Turns the first SIGTERM into a `SystemExit`; a second one kills. A custom handler is kept.

    Args:
        leaves_something (`bool`): False for processes that write nothing; they end at once, even within an exchange.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not leaves_something or not in_main_thread or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    owner = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() != owner:  # a child process inherited this handler
            os.kill(os.getpid(), number)
            return
        raise Terminated(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
