# SPDX-License-Identifier: Apache-2.0
"""One run at a time in an output folder: two would delete each other's checkpoints.

The lock is the operating system's, on an open file: it ends with the process, however that ends. File systems and
platforms without such locks go unguarded.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers.utils import logging

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

logger = logging.get_logger(__name__)

LOCK_FILE = "_run.lock"  # names that begin so are not pushed to the Hub
HELD = (errno.EWOULDBLOCK, errno.EACCES)


class FolderInUseError(RuntimeError):
    """Another run writes to this output folder."""


@contextmanager
def only_run_in(folder: str | Path) -> Iterator[None]:
    """Holds the folder for this run.

    Raises:
        FolderInUseError: If another run holds it.
    """
    if fcntl is None:
        yield
        return
    path = Path(folder) / LOCK_FILE
    descriptor = _acquire(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is held, so that nobody else's is deleted
        os.close(descriptor)


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
                    "one folder delete each other's checkpoints. Wait for its end, or use another output_dir."
                ) from error
            logger.warning("%s cannot be locked (%s): see that no other run writes to this folder.", path, error)
            return descriptor
        if _is_still(path, descriptor):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
            return descriptor
        os.close(descriptor)  # its holder deleted it in between


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
