# SPDX-License-Identifier: Apache-2.0
"""Processes that end when their launcher is gone.

A launcher that is killed (`kill -9`) cannot end its processes. They would train on as orphans, hold the lock of the
output folder and the device, and nobody would see them.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging

logger = logging.get_logger(__name__)

SECONDS = 5.0  # between two looks
GRACE = 20.0  # seconds to end in order, which a process that waits for another one cannot


@contextmanager
def ending_with_launcher(every: float = SECONDS, grace: float = GRACE) -> Iterator[None]:
    """Watches the launcher while the body runs, in processes that torch's or accelerate's launcher has started."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or not hasattr(signal, "SIGKILL"):
        yield
        return
    is_over = threading.Event()
    watch = threading.Thread(target=_watch, args=(os.getppid(), is_over, every, grace), daemon=True)
    watch.start()
    try:
        yield
    finally:
        is_over.set()


def _watch(launcher: int, is_over: threading.Event, every: float, grace: float) -> None:
    while not is_over.wait(every):
        if os.getppid() != launcher:
            logger.error("The launcher (process %d) is gone, so this process (%d) ends.", launcher, os.getpid())
            os.kill(os.getpid(), signal.SIGTERM)
            if not is_over.wait(grace):
                os.kill(os.getpid(), signal.SIGKILL)
            return
