# SPDX-License-Identifier: Apache-2.0
"""Calls functions of users with a time limit: plain ones in threads, async ones on an event loop.

Python cannot end a thread. A plain function that exceeds its limit keeps its thread until it returns, and nobody waits
for it; when too many are left behind, the run ends and names the function. An async function is cancelled.
"""

import inspect
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from queue import SimpleQueue
from typing import Any

from ..event_loop import LoopThread
from .errors import AgentError

MOST_LEFT_BEHIND = 64


class ToolTimeout(Exception):
    """A call exceeded its time limit."""


class ToolRunner:
    """Calls functions. May be used by several threads at once. Its own threads end with it.

    Args:
        timeout (`float`): Seconds after which a call is given up.

    Attributes:
        timeout (`float`): The same.
        close (`Callable`): Ends the threads that have nothing to do.
    """

    def __init__(self, timeout: float):
        self.timeout = timeout
        self._loop = LoopThread("async-tools")
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._left_behind: list[_Worker] = []
        self.close = weakref.finalize(self, _end, self._idle, self._loop)

    def __call__(self, function: Callable, /, *args: Any, **kwargs: Any) -> Any:
        """Calls a function with these arguments and returns its result.

        Raises:
            ToolTimeout: If it took longer than the limit.
            AgentError: If too many calls that were given up are still running.
            Exception: What the function raised.
        """
        if is_async(function):
            return self._awaited(function(*args, **kwargs))
        worker = self._take()
        future = worker.start(partial(function, *args, **kwargs))
        try:
            error = future.exception(self.timeout)
        except FutureTimeout:
            self._leave_behind(worker, function)
            raise ToolTimeout(f"it took longer than {self.timeout:g} seconds") from None
        self._give_back(worker)
        if error is not None:
            raise error
        result = future.result()
        return self._awaited(result) if inspect.isawaitable(result) else result

    def _awaited(self, awaitable: Any) -> Any:
        with self._lock:
            future = self._loop.submit(awaitable)
        try:
            error = future.exception(self.timeout)
        except FutureTimeout:
            future.cancel()
            raise ToolTimeout(f"it took longer than {self.timeout:g} seconds") from None
        if error is not None:
            raise error
        return future.result()

    def _take(self) -> "_Worker":
        with self._lock:
            return self._idle.pop() if self._idle else _Worker()

    def _give_back(self, worker: "_Worker") -> None:
        with self._lock:
            self._idle.append(worker)

    def _leave_behind(self, worker: "_Worker", function: Callable) -> None:
        worker.end()  # when the call returns
        with self._lock:
            self._left_behind = [*filter(threading.Thread.is_alive, self._left_behind), worker]
            count = len(self._left_behind)
        if count >= MOST_LEFT_BEHIND:
            raise AgentError(
                f"{count} calls are still running after their {self.timeout:g} seconds (tool_timeout), the last "
                f"one of {getattr(function, '__name__', function)!r}. A thread cannot be ended from outside: give the "
                "function a time limit of its own (of its request, its process), make it async, or raise tool_timeout."
            )


def _end(idle: list["_Worker"], loop: LoopThread) -> None:
    while idle:
        idle.pop().end()
    loop.close()


class _Worker(threading.Thread):
    """A thread that runs one call at a time."""

    def __init__(self):
        super().__init__(name="tool", daemon=True)
        self._jobs: SimpleQueue = SimpleQueue()
        super().start()

    def start(self, call: Callable[[], Any]) -> Future:
        future: Future = Future()
        self._jobs.put((call, future))
        return future

    def end(self) -> None:
        self._jobs.put(None)

    def run(self) -> None:
        while (job := self._jobs.get()) is not None:
            call, future = job
            try:
                future.set_result(call())
            except BaseException as error:  # an exit, too, is the caller's to judge and must not end the thread
                future.set_exception(error)
            del job, call, future  # a thread that waits keeps nothing alive


def is_async(function: Callable) -> bool:
    """Whether calling the function gives something to await; also for objects with an async `__call__`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
