# SPDX-License-Identifier: Apache-2.0
"""Dynamic sampling: groups from which nothing is learned are put aside, and further prompts drawn in their place.

The filter is that of DAPO (arXiv 2503.14476, section 3.2). Which groups a rollout ends with is a pure function of the
run's state: prompts have an order, and the first ones whose rewards differ are taken, however long each took.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from accelerate import Accelerator

from ...algorithms import zero_variance_groups
from .experience import Experience, joined, selected


class DynamicSampling:
    """Fills up a rollout with groups whose rewards differ.

    Args:
        max_resampled (`int`): Most further prompts of one process and rollout.
        accelerator: Connects the processes, which make equally many passes.
    """

    def __init__(self, max_resampled: int, accelerator: Accelerator):
        self._max_resampled, self._accelerator = max_resampled, accelerator

    def fill(
        self,
        first: Experience,
        wanted: int,
        reserve: Iterator[int],
        draw: Callable[[Sequence[int], int], Experience],
    ) -> Experience:
        """Returns as many groups as are wanted, if possible all with rewards that differ.

        Args:
            first ([`Experience`]): Groups with rewards: the first ones, and those of further prompts if the rollout
                was refilled while it ran.
            wanted (`int`): Number of groups.
            reserve (`Iterator[int]`): Numbers of further prompts, in order.
            draw (`Callable[[Sequence[int], int], Experience]`): Draws and scores prompts, given their numbers, which
                may be none, and the number of the pass. Every process calls it equally often.
        """
        drawn, useful = [first], groups_that_teach(first)
        left = self._max_resampled - (len(useful) - wanted)
        while True:
            numbers = list(islice(reserve, min(wanted - sum(useful), left)))
            left -= len(numbers)
            if not self._any(len(numbers)):
                break
            drawn.append(draw(numbers, len(drawn)))
            useful += groups_that_teach(drawn[-1])
        whole = joined([each for each in drawn if each.prompts], keeps_notes=True) if len(drawn) > 1 else first
        self._measure(whole, useful, wanted)
        return selected(whole, _chosen(useful, wanted))

    def _any(self, count: int) -> bool:
        most = self._accelerator.gather(torch.tensor([count], device=self._accelerator.device)).max()
        return bool(most)

    def _measure(self, whole: Experience, useful: list[bool], wanted: int) -> None:
        metrics = whole.metrics
        metrics.add_values("prompts/drawn", torch.tensor([float(len(useful))]))
        metrics.add_values("prompts/without_variance", 1 - torch.tensor(useful, dtype=torch.float32))
        metrics.add_values("prompts/filled", torch.tensor([float(max(0, wanted - sum(useful)))]))
        metrics.add_values("prompts/reward", whole.rewards)


def groups_that_teach(experience: Experience) -> list[bool]:
    """Whether the rewards of each group differ; with rewards of turns, whether those do."""
    size = experience.num_generations
    if experience.turn_rewards is None:
        return (~zero_variance_groups(experience.rewards, size)).tolist()
    counted = [
        [tuple(row) for row in experience.turn_rewards[start : start + size] if row and row[0] == row[0]]  # no NaN
        for start in range(0, len(experience.turn_rewards), size)
    ]
    return [len(set(rows)) > 1 for rows in counted]


def reserve_numbers(
    num_prompts: int, taken: Sequence[int], seed: Sequence[int], process: int, count: int
) -> list[int]:
    """The order in which a process draws further prompts for a rollout; no two processes draw the same.

    Args:
        num_prompts (`int`): Prompts of the data set.
        taken (`Sequence[int]`): The numbers that the rollout began with.
        seed (`Sequence[int]`): Of the run and the rollout, equal in all processes.
        process (`int`), count (`int`): Number of the process, and how many there are.
    """
    own = np.random.default_rng(list(seed)).permutation(num_prompts)[process::count].tolist()
    return [number for number in own if number not in set(taken)]


def _chosen(useful: list[bool], wanted: int) -> list[int]:
    """The first groups that teach; if they are too few, the first of the others too. In the order of prompts."""
    teaching_groups = [number for number, teaches in enumerate(useful) if teaches][:wanted]
    others = [number for number, teaches in enumerate(useful) if not teaches]
    return sorted([*teaching_groups, *others[: wanted - len(teaching_groups)]])
