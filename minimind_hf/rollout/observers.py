# SPDX-License-Identifier: Apache-2.0
"""Threads on which an engine waits for others: sessions that answer while other episodes go on, and servers.

They live as long as one call of an engine. A tool that hangs can keep neither an error nor the end of the process
waiting: whoever waits here can be interrupted, and the threads do not keep the interpreter alive.
"""

from collections.abc import Callable, Iterable
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any, NamedTuple, Self

TOOL_WORKERS = 8

Answer = list[int] | None


class _Done(NamedTuple):
    number: int
    result: Any
    error: BaseException | None


class Threads:
    """A pool of threads, started as they are needed. Use it in a `with` block, which ends them.

    Threads that still work when the block is left with an error are not waited for; they end with what they do.

    Args:
        workers (`int`): Most threads.
    """

    def __init__(self, workers: int):
        self.workers = workers
        self.pending = 0  # results that have not been returned
        self._tasks: SimpleQueue = SimpleQueue()
        self._done: SimpleQueue = SimpleQueue()
        self._threads: list[Thread] = []

    def start(self, number: int, work: Callable[[], Any]) -> None:
        """Does work, whose result is known by this number."""
        self._tasks.put((number, work))
        self.pending += 1
        if len(self._threads) < min(self.workers, self.pending):
            thread = Thread(target=_work, args=(self._tasks, self._done), name="rollout", daemon=True)
            self._threads.append(thread)
            thread.start()

    def results(self, awaited: Iterable[int] = (), seconds: float = 0.0) -> dict[int, Any]:
        """Returns the results that have come, by number and in its order.

        Args:
            awaited (`Iterable[int]`): Waits until these have come, unless the time is over.
            seconds (`float`): Longest time to wait, for all together.

        Raises:
            BaseException: What the work raised.
        """
        found: dict[int, Any] = {}
        missing, deadline = set(awaited), monotonic() + seconds
        while missing or not self._done.empty():
            left = deadline - monotonic()
            try:
                done = self._done.get(timeout=left) if left > 0 else self._done.get_nowait()
            except Empty:
                break
            found[done.number] = self._take(done)
            missing.discard(done.number)
        return dict(sorted(found.items()))

    def first(self) -> dict[int, Any]:
        """Waits for a result, however long, and returns it with all others that have come."""
        done = self._done.get()
        return dict(sorted({done.number: self._take(done), **self.results()}.items()))

    def all(self) -> dict[int, Any]:
        """Waits for all results, however long."""
        found: dict[int, Any] = {}
        while self.pending:
            found |= self.first()
        return found

    def _take(self, done: _Done) -> Any:
        self.pending -= 1
        if done.error is not None:
            raise done.error
        return done.result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        while not self._tasks.empty():
            try:
                self._tasks.get_nowait()  # nobody wants these results any more
            except Empty:
                break
        for _thread in self._threads:
            self._tasks.put(None)
        if error_type is None:
            for thread in self._threads:
                thread.join()


class Observers(Threads):
    """The threads on which sessions answer.

    Args:
        workers (`int`): Most threads.
    """

    def __init__(self, workers: int = TOOL_WORKERS):
        super().__init__(checked_workers(workers))

    def submit(self, number: int, observe: Callable[[list[int], str], Answer], ids: list[int], reason: str) -> None:
        """Asks a session, by the number of its episode, for an answer to a turn."""
        self.start(number, partial(observe, list(ids), reason))


def checked_workers(workers: int) -> int:
    """Returns how many sessions may answer at a time.

    Raises:
        ValueError: If none may.
    """
    if workers < 1:
        raise ValueError(f"tool_workers must be at least 1, got {workers}.")
    return workers


def _work(tasks: SimpleQueue, done: SimpleQueue) -> None:
    while (task := tasks.get()) is not None:
        number, work = task
        try:
            done.put(_Done(number, work(), None))
        except BaseException as error:  # it is raised where the results are waited for
            done.put(_Done(number, None, error))
