# SPDX-License-Identifier: Apache-2.0
"""Threads on which sessions answer, while other episodes go on.

They live as long as one call of an engine. A tool that hangs can keep neither an error nor the end of the process
waiting: whoever waits here can be interrupted, and the threads do not keep the interpreter alive.
"""

from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import NamedTuple

TOOL_WORKERS = 8

Answer = list[int] | None


class _Done(NamedTuple):
    number: int
    answer: Answer
    error: BaseException | None


class Observers:
    """A pool of threads, started as they are needed. Use it in a `with` block, which ends them.

    Threads that still answer when the block is left with an error are not waited for; they end with their answers.

    Args:
        workers (`int`): Most threads.
    """

    def __init__(self, workers: int = TOOL_WORKERS):
        if workers < 1:
            raise ValueError(f"tool_workers must be at least 1, got {workers}.")
        self.workers = workers
        self.pending = 0  # answers that have not been returned
        self._tasks: SimpleQueue = SimpleQueue()
        self._done: SimpleQueue = SimpleQueue()
        self._threads: list[Thread] = []

    def submit(self, number: int, observe: Callable[[list[int], str], Answer], ids: list[int], reason: str) -> None:
        """Asks a session, by the number of its episode, for an answer to a turn."""
        self._tasks.put((number, observe, list(ids), reason))
        self.pending += 1
        if len(self._threads) < min(self.workers, self.pending):
            thread = Thread(target=_work, args=(self._tasks, self._done), name="observe", daemon=True)
            self._threads.append(thread)
            thread.start()

    def answers(self, awaited: Iterable[int] = (), seconds: float = 0.0) -> dict[int, Answer]:
        """Returns the answers that have come, by number and in its order.

        Args:
            awaited (`Iterable[int]`): Waits until these have come, unless the time is over.
            seconds (`float`): Longest time to wait, for all together.

        Raises:
            BaseException: What a session raised.
        """
        found: dict[int, Answer] = {}
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

    def first(self) -> dict[int, Answer]:
        """Waits for an answer, however long, and returns it with all others that have come."""
        done = self._done.get()
        return dict(sorted({done.number: self._take(done), **self.answers()}.items()))

    def all(self) -> dict[int, Answer]:
        """Waits for all answers, however long."""
        found: dict[int, Answer] = {}
        while self.pending:
            found |= self.first()
        return found

    def _take(self, done: _Done) -> Answer:
        self.pending -= 1
        if done.error is not None:
            raise done.error
        return done.answer

    def __enter__(self) -> "Observers":
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        while not self._tasks.empty():
            try:
                self._tasks.get_nowait()  # nobody wants these answers any more
            except Empty:
                break
        for _thread in self._threads:
            self._tasks.put(None)
        if error_type is None:
            for thread in self._threads:
                thread.join()


def _work(tasks: SimpleQueue, done: SimpleQueue) -> None:
    while (task := tasks.get()) is not None:
        number, observe, ids, reason = task
        try:
            done.put(_Done(number, observe(ids, reason), None))
        except BaseException as error:  # it is raised where the answers are waited for
            done.put(_Done(number, None, error))
