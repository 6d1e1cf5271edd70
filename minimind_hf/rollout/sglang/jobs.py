# SPDX-License-Identifier: Apache-2.0
"""The jobs of one request in their order, and those that a refill asks for while they run."""

from collections.abc import Callable, Sequence
from typing import Any

from ..refill import Refill
from ..samples import Rollout
from .rounds import Job


class Jobs:
    """Jobs that all give equally many completions.

    Args:
        make (`Callable`): Makes a job of a prompt or session, or refuses it.
        rollouts_of (`Callable`): Returns the completions of a job that is complete.
        refill ([`Refill`], *optional*): Sees them, and may ask for more.

    Attributes:
        all (`list[Job]`): Those so far.
    """

    def __init__(
        self, make: Callable[[Any], Job], rollouts_of: Callable[[Job], list[Rollout]], refill: Refill | None = None
    ):
        self.all: list[Job] = []
        self._make, self._rollouts_of, self._refill = make, rollouts_of, refill

    def add(self, asked: Sequence[Any]) -> list[Job]:
        """Adds jobs for prompts or sessions, and returns them."""
        added = []
        for each in asked:
            added.append(self._make(each))
            self.all.append(added[-1])
        return added

    def further(self, job: Job) -> list[Job]:
        """What the refill asks for when a job is complete. The other jobs go on while it is waited for."""
        if self._refill is None:
            return []
        rollouts = self._rollouts_of(job)
        first = next(number for number, each in enumerate(self.all) if each is job) * len(rollouts)
        for number, rollout in enumerate(rollouts, start=first):
            self._refill.finished(number, rollout)
        return self.add(self._refill.further(waits=True))

    @property
    def rollouts(self) -> list[Rollout]:
        return [rollout for job in self.all for rollout in self._rollouts_of(job)]
