# SPDX-License-Identifier: Apache-2.0
"""Processes that stop together: where one fails, the others say so and end too, instead of waiting for it.

A launcher ends the rest of a run sooner or later, but until then a process that waits for a dead one only shows a
timeout. So work that can fail in one process alone (engines, rewards, files) is followed by a short exchange. Engines
need it as well as trainers. Without `torch.distributed` there is one process, and an error is simply raised.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from torch import distributed as dist

from .errors import ServerGoneError

T = TypeVar("T")


class _Failure(NamedTuple):
    """An error in a form that travels."""

    message: str
    is_gone: bool


def is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    """Number of this process."""
    return dist.get_rank() if is_distributed() else 0


def gather(value: T) -> list[T]:
    """Returns the values of all processes, in order; every process calls it."""
    if not is_distributed():
        return [value]
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


@contextmanager
def failing_together(doing: str) -> Iterator[None]:
    """Raises in every process if the body raised in one. Every process enters it.

    Args:
        doing (`str`): What the body does, for the message.

    Raises:
        RuntimeError: In the processes that did not fail, naming those that did and their errors. Those raise their
            own. Also if a process is lost. It is a [`ServerGoneError`] if all their errors are, so that all processes
            save a checkpoint.
    """
    error = None
    try:
        yield
    except Exception as caught:
        error = caught
    _agree(doing, None, error)


def on_main(doing: str, work: Callable[[], T]) -> T:
    """Does the work in the first process and returns its result, which must be small, in all.

    Args:
        doing (`str`): What it is, for the message.
        work (`Callable`): Called in the first process.

    Raises:
        Exception: As in [`failing_together`].
    """
    result, error = None, None
    if rank() == 0:
        try:
            result = work()
        except Exception as caught:
            error = caught
    return _agree(doing, result, error)[0]


def _agree(doing: str, result: T, error: Exception | None) -> list[T]:
    """Returns the results of all processes, or raises what failed in any."""
    failure = error and _Failure(f"{type(error).__name__}: {error}", isinstance(error, ServerGoneError))
    try:
        told = gather((result, failure))
    except RuntimeError as lost:
        raise RuntimeError(
            f"Another process is gone: this one waited for it after {doing} and lost the connection. It was killed, "
            f"or an error ended it, which its log or the launcher's summary names. ({lost})"
        ) from lost
    if error is not None:
        raise error
    failed = {process: failure for process, (_, failure) in enumerate(told) if failure is not None}
    if failed:
        causes = "; ".join(f"process {process}: {failure.message}" for process, failure in failed.items())
        kind = ServerGoneError if all(failure.is_gone for failure in failed.values()) else RuntimeError
        raise kind(f"Stopped because {doing} failed in {len(failed)} of {len(told)} processes. {causes}")
    return [result for result, _ in told]
