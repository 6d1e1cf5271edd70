# SPDX-License-Identifier: Apache-2.0
"""Dynamic sampling within a running rollout: groups are scored as they complete, while others are decoded.

For each group that is put aside the next prompt enters. A rollout is over when its prompts are as many as were wanted
and those that were put aside, which is how [`DynamicSampling`] ends with its passes; the smallest such number is the
same whoever comes first, so both draw the same prompts and choose the same groups. When a prompt enters is counted in
looks of the engine, never in seconds, so that the torch engine decodes the same batches in every run.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from ...event_loop import Pending
from ...rollout import Rollout
from .dynamic_sampling import groups_that_teach
from .experience import Experience, joined, selected

# An engine looks at its completions once for each token or few. For so many looks it goes on while rewards that are
# async are awaited; then it waits for them.
LOOKS = 16
_FILLED_IN = ("prompts", "rollouts", "episodes", "completions", "signals", "rewards", "turn_rewards", "notes")


@dataclass
class _Judged:
    group: Experience
    judging: Pending
    looks: int = 0

    @property
    def is_due(self) -> bool:
        return not self.judging.waits or self.looks >= LOOKS


class Refilling:
    """Refills one rollout of this process; a [`Refill`] for engines.

    Args:
        first ([`Experience`]): The rollout that is about to be drawn, without stand-ins.
        further (`Iterator[Experience]`): Rollouts of one further prompt each, in order.
        begin (`Callable`): Returns what an engine draws of a rollout: tokens of prompts, or sessions.
        check (`Callable`): Refuses completions of a rollout that cannot be trained on.
        score (`Callable`): Begins to score a rollout. The result fills in its rewards.
    """

    def __init__(
        self,
        first: Experience,
        further: Iterator[Experience],
        begin: Callable[[Experience], Sequence[Any]],
        check: Callable[[Experience], None],
        score: Callable[[Experience], Pending],
    ):
        self._first, self._further = first, further
        self._begin, self._check, self._score = begin, check, score
        self._groups: list[Experience] = []  # of one prompt each, in the order of prompts
        self._drawn: list[dict[int, Rollout]] = []  # of each group, by their places in it
        self._judged: deque[_Judged] = deque()

    def finished(self, number: int, rollout: Rollout) -> None:
        """See [`Refill`]."""
        if not self._groups:  # now that episodes have begun
            count = len(self._first.prompts)
            begun = selected(self._first, range(count))
            self._groups = [selected(begun, [index]) for index in range(count)]
            self._drawn = [{} for _ in self._groups]
        index, place = divmod(number, self._first.num_generations)
        group, drawn = self._groups[index], self._drawn[index]
        drawn[place] = rollout
        if len(drawn) == group.num_generations:
            group.rollouts = [drawn[place] for place in range(len(drawn))]
            self._check(group)
            with self._aside():
                self._judged.append(_Judged(group, self._score(group)))

    def further(self, waits: bool) -> list[Any]:
        """See [`Refill`]."""
        asked: list[Any] = []
        for judged in self._judged:
            judged.looks += 1
        while self._judged and (self._judged[0].is_due or (waits and not asked)):
            judged = self._judged.popleft()
            with self._aside():
                judged.judging.result()
            if not any(groups_that_teach(judged.group)):
                asked += self._next()
        return asked

    def fill_in(self, experience: Experience) -> None:
        """Makes the first rollout one of all prompts that were drawn, with their rewards."""
        whole = joined(self._groups, keeps_notes=True)
        for name in _FILLED_IN:
            setattr(experience, name, getattr(whole, name))
        experience.refill = None

    def _next(self) -> Sequence[Any]:
        group = next(self._further, None)
        if group is None:
            return []
        group.behind = self._first.behind
        asked = self._begin(group)
        self._groups.append(group)
        self._drawn.append({})
        return asked

    def _aside(self) -> AbstractContextManager:
        """Where reward functions run: as outside of an engine, and not on its clock."""
        stack = ExitStack()
        stack.enter_context(self._first.metrics.phase("scoring", within="rollout"))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        return stack
