# SPDX-License-Identifier: Apache-2.0
"""Processes that stop together: if one fails, the others report it and end too, instead of waiting for it.

A launcher ends the rest of a run sooner or later, but until then a process that waits for a dead one shows only a
timeout. So everything that may fail in a single process (engines, rewards) is followed by a short exchange.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from accelerate import Accelerator
from accelerate.utils import gather_object

from ...rollout import ServerGoneError


@contextmanager
def failing_together(accelerator: Accelerator, doing: str) -> Iterator[None]:
    """Raises in every process if the body raised in one. Every process enters it; the body must not be collective.

    Args:
        accelerator: Connects the processes.
        doing (`str`): Description of the body, for the message.

    Raises:
        RuntimeError: In the processes that did not fail, naming the failed processes and their errors, or if a process
            is lost. Failed processes raise their own error. If all of these are [`ServerGoneError`], so is this one,
            so that all processes save a checkpoint.
    """
    error = None
    try:
        yield
    except Exception as caught:
        error = caught
    if accelerator.num_processes > 1:
        told = None if error is None else (f"{type(error).__name__}: {error}", isinstance(error, ServerGoneError))
        failed = {rank: said for rank, said in enumerate(_exchange([told], doing)) if said is not None}
        if failed and error is None:
            causes = "; ".join(f"process {rank}: {message}" for rank, (message, _) in failed.items())
            is_gone = all(gone for _, gone in failed.values())
            raise (ServerGoneError if is_gone else RuntimeError)(
                f"Stopped because {doing} failed in {len(failed)} of {accelerator.num_processes} processes. {causes}"
            )
    if error is not None:
        raise error


def _exchange(told: list[tuple[str, bool] | None], doing: str) -> list[tuple[str, bool] | None]:
    try:
        return gather_object(told)
    except RuntimeError as lost:
        raise RuntimeError(
            f"Another process is gone: this one waited for it after {doing} and lost the connection. It was killed or "
            f"ended with an error; see its log or the launcher's summary. ({lost})"
        ) from lost
