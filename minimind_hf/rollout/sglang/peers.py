# SPDX-License-Identifier: Apache-2.0
"""Work that the processes of a run do together: all go on with its result, or all end with the same error.

Whoever fails says so in the exchange that follows, instead of leaving the others to wait for it. Without
`torch.distributed` there is one process, and an error is simply raised.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from torch import distributed as dist

from ..errors import ServerGoneError

T = TypeVar("T")


@dataclass(frozen=True)
class _Failure:
    """Why a process cannot go on, in a form that travels."""

    message: str
    is_gone: bool

    def as_error(self, process: int) -> RuntimeError:
        kind = ServerGoneError if self.is_gone else RuntimeError
        return kind(f"Process {process} failed, so all of them end: {self.message}")


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


def together(work: Callable[[], T]) -> T:
    """Does the work in every process and returns to each its own result.

    Raises:
        Exception: In a process whose work failed, what it raised; in the others a [`ServerGoneError`] or a
            `RuntimeError` that says the same.
    """
    result, error = _attempt(work)
    _raise_any(gather(_failure(error)), error)
    return result


def on_main(work: Callable[[], T]) -> T:
    """Does the work in the first process and returns its result, which must be small, in all; errors as in
    [`together`]."""
    result, error = _attempt(work) if rank() == 0 else (None, None)
    told = gather((result, _failure(error)))
    _raise_any([failure for _, failure in told], error)
    return told[0][0]


def _attempt(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error


def _failure(error: Exception | None) -> _Failure | None:
    return error and _Failure(f"{type(error).__name__}: {error}", isinstance(error, ServerGoneError))


def _raise_any(failures: list[_Failure | None], own_error: Exception | None) -> None:
    if own_error is not None:
        raise own_error
    for process, failure in enumerate(failures):
        if failure is not None:
            raise failure.as_error(process)
