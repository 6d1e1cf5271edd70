# SPDX-License-Identifier: Apache-2.0
"""SIGTERM, by which schedulers end a job, ends a run as Ctrl-C does: what it leaves is written first."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def ending_in_order(leaves_something: bool = True) -> Iterator[None]:
    """Turns the first SIGTERM into a `SystemExit`; a second one kills. A handler of the user's own stays.

    Args:
        leaves_something (`bool`): Off for processes that write nothing: they end at once, even within an exchange.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not leaves_something or not in_main_thread or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    owner = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() != owner:  # a child that inherited this
            os.kill(os.getpid(), number)
            return
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
