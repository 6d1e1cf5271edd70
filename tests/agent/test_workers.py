# SPDX-License-Identifier: Apache-2.0
"""Calls with a time limit: results, errors, timeouts, and what is left of threads."""

import asyncio
import gc
import threading
import time

import pytest
from naming import raises_naming

from minimind_hf.agent.errors import AgentError
from minimind_hf.agent.workers import MOST_LEFT_BEHIND, ToolRunner, ToolTimeout, is_async


@pytest.fixture
def run():
    runner = ToolRunner(timeout=5)
    yield runner
    runner.close()


def tool_threads() -> int:
    return sum(thread.name in ("tool", "async-tools") for thread in threading.enumerate())


def await_tool_threads(count: int) -> None:
    """Waits until so many are left; a thread ends a moment after it was told to."""
    gc.collect()  # of runners that tests before have left
    deadline = time.monotonic() + 5
    while tool_threads() != count and time.monotonic() < deadline:
        time.sleep(0.01)
    assert tool_threads() == count


def test_plain_and_async_functions_return_their_results(run):
    async def later(x):
        await asyncio.sleep(0.01)
        return x + 1

    assert run(lambda x, y: x * y, 6, y=7) == 42
    assert run(later, x=1) == 2
    assert run(lambda x: later(x), 2) == 3  # a plain function that returns something to await


def test_what_a_function_raises_is_raised(run):
    def fails():
        raise KeyError("k")

    async def fails_later():
        raise LookupError("k")

    def leaves():
        raise SystemExit(3)

    for function, error in ((fails, KeyError), (fails_later, LookupError), (leaves, SystemExit)):
        with pytest.raises(error):
            run(function)
    assert run(lambda: 1) == 1  # the thread lives on


def test_a_timeout_of_the_function_itself_is_not_ours(run):
    def gives_up():
        raise TimeoutError("of a request")

    with pytest.raises(TimeoutError, match="of a request") as raised:
        run(gives_up)
    assert not isinstance(raised.value, ToolTimeout)


def test_a_slow_function_is_given_up_and_its_thread_ends_with_it():
    await_tool_threads(0)
    runner, released = ToolRunner(timeout=0.05), threading.Event()
    with raises_naming(ToolTimeout, 0.05):
        runner(released.wait, 30)
    await_tool_threads(1)
    released.set()
    await_tool_threads(0)


def test_a_slow_async_function_is_cancelled():
    runner, cancelled = ToolRunner(timeout=0.05), threading.Event()

    async def waits():
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(ToolTimeout):
        runner(waits)
    assert cancelled.wait(5)
    runner.close()


def test_too_many_calls_left_behind_end_the_run():
    runner, released = ToolRunner(timeout=0.001), threading.Event()

    def hangs():
        released.wait(60)

    try:
        for _ in range(MOST_LEFT_BEHIND - 1):
            with pytest.raises(ToolTimeout):
                runner(hangs)
        with raises_naming(AgentError, "tool_timeout", "hangs", MOST_LEFT_BEHIND):
            runner(hangs)
    finally:
        released.set()


def test_threads_are_used_again():
    await_tool_threads(0)
    runner = ToolRunner(timeout=5)
    for number in range(1000):
        assert runner(lambda n: n, number) == number
    assert tool_threads() == 1
    runner.close()
    await_tool_threads(0)


def test_calls_from_several_threads_run_side_by_side(run):
    barrier = threading.Barrier(4)
    results = []
    callers = [threading.Thread(target=lambda: results.append(run(barrier.wait, 5))) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert sorted(results) == [0, 1, 2, 3]


def test_is_async_sees_functions_and_callable_objects():
    class Called:
        async def __call__(self):
            return 1

    async def later():
        return 1

    assert is_async(later) and is_async(Called())
    assert not is_async(len)
