# SPDX-License-Identifier: Apache-2.0
"""Processes that stop together: where one fails, the others say so and end too, instead of waiting for it.

A launcher ends what is left of a run sooner or later; until then a process that waits for a dead one shows nothing
but a timeout. So what is prone to fail in one process alone (engines, rewards) is followed by a short exchange.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from accelerate import Accelerator
from accelerate.utils import gather_object

from ...rollout import ServerGoneError


@contextmanager
def failing_together(accelerator: Accelerator, doing: str) -> Iterator[None]:
    """Raises in every process if the body raised in one; every process enters it, and nothing inside is collective.

    Args:
        accelerator: Joins the processes.
        doing (`str`): What the body does, for the message.

    Raises:
        RuntimeError: In the processes that did not fail, naming those that did and their errors. Those raise theirs.
            Also if a process is lost. It is a [`ServerGoneError`] where theirs is, so that all save a checkpoint.
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
            f"ended by an error of its own, which its log or the launcher's summary names. ({lost})"
        ) from lost
