# SPDX-License-Identifier: Apache-2.0
"""The output folder of a run: one run at a time writes to it, and SIGTERM ends that run as Ctrl-C does."""

import errno
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from accelerate import Accelerator
from transformers.utils import logging

from ..distributed.agreement import failing_together

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

logger = logging.get_logger(__name__)

LOCK_FILE = "_run.lock"  # names that begin with an underscore are not pushed to the Hub
HELD = (errno.EWOULDBLOCK, errno.EACCES)


class FolderInUseError(RuntimeError):
    """Another run is writing to this output folder."""


@contextmanager
def only_run_in(folder: str | Path) -> Iterator[None]:
    """Locks the folder for this run.

    Raises:
        FolderInUseError: If another run has locked it.
    """
    if fcntl is None:
        yield
        return
    path = Path(folder) / LOCK_FILE
    descriptor = _acquire(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # before the lock is released, so that another run's file is never deleted
        os.close(descriptor)


@contextmanager
def held_by_this_run(folder: str | Path, accelerator: Accelerator) -> Iterator[None]:
    """Locks the folder in the main process, on behalf of all processes; every process enters it."""
    with ExitStack() as held:
        with failing_together(accelerator, "claiming the output folder"):
            if accelerator.is_main_process:
                held.enter_context(only_run_in(folder))
        yield


def _acquire(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in HELD:
                holder = os.read(descriptor, 32).decode(errors="replace").strip()
                os.close(descriptor)
                raise FolderInUseError(
                    f"Another run is writing to {path.parent}{f' (process {holder})' if holder else ''}. Two runs in "
                    "one folder delete each other's checkpoints. Wait until it ends, or use another output_dir."
                ) from error
            logger.warning("%s cannot be locked (%s): make sure that no other run writes to this folder.", path, error)
            return descriptor
        if _is_still(path, descriptor):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
            return descriptor
        os.close(descriptor)  # the run that held it deleted it in between


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


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
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
