# SPDX-License-Identifier: Apache-2.0
"""An event loop in its own thread, for async functions of users: notebooks run one in the main thread already."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future, wait
from typing import Any, NamedTuple


class Pending(NamedTuple):
    """Something that has begun.

    Args:
        waits (`bool`): Whether its result depends on others, so that one may have to wait for it.
        result (`Callable`): Returns the result; to be called once.
    """

    waits: bool
    result: Callable[[], Any]


def cancel(answers: Iterable[Any]) -> None:
    """Cancels those answers that are still awaited; others may be anything."""
    for answer in answers:
        if isinstance(answer, Future):
            answer.cancel()


class LoopThread:
    """An event loop whose thread starts when it is first needed.

    Args:
        name (`str`): Of the thread.
    """

    def __init__(self, name: str):
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ended_by: BaseException | None = None

    def submit(self, answer: Awaitable[Any]) -> Future:
        if self._loop is not None and not self._thread.is_alive():
            self.close()
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(_await(answer), self._loop)

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        except BaseException as error:  # such as KeyboardInterrupt, which asyncio passes on to the thread of the loop
            self._ended_by = error

    def result_of(self, future: Future) -> Any:
        """Waits for an answer, or raises the error that ended the loop, after which there would be none."""
        while not wait([future], timeout=0.2).done:
            if not self._thread.is_alive():
                raise self._ended_by
        return future.result()

    def close(self) -> None:
        """Ends the thread, if there is one."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = self._thread = None


async def _await(answer: Awaitable[Any]) -> Any:
    try:
        return await answer
    except SystemExit as error:  # asyncio would end the thread of the loop by it
        raise RuntimeError(f"SystemExit: {error}") from error
