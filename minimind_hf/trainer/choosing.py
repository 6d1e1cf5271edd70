# SPDX-License-Identifier: Apache-2.0
"""Which prompts a rollout draws, by what is learned from them: the filter of dynamic sampling, and a memory."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice

import torch
from accelerate.utils import gather_object

from ..data.streams import PromptStream
from .experience.dynamic_sampling import DynamicSampling, reserve_numbers
from .experience.experience import Experience
from .experience.prompt_memory import PromptMemory
from .experience.refilling import Refilling
from .settings.grpo import GRPOConfig
from .steps import FourSteps

_RESAMPLED = 3  # rollouts of further prompts, unless max_resampled is set


class ChoosingPrompts(FourSteps):
    """Mixin of [`GRPOTrainer`]: `dynamic_sampling` and `prompt_memory`."""

    args: GRPOConfig
    prompt_memory: PromptMemory | None = None

    def prepare_choosing(self) -> None:
        """Sets the memory up.

        Raises:
            ValueError: If the prompts are a stream, in which there is no further prompt to draw.
        """
        args = self.args
        for name in ("dynamic_sampling", "prompt_memory"):
            if getattr(args, name) and isinstance(self.train_dataset, PromptStream):
                raise ValueError(
                    f"{name}=True draws prompts out of their order, but train_dataset is a stream, which can only be "
                    "read forwards. Load it as a datasets.Dataset, or leave the setting at False."
                )
        self.prompt_memory = PromptMemory(args.prompt_memory_floor) if args.prompt_memory else None

    def choose_prompts(self, numbers: Sequence[int]) -> Sequence[int]:
        if not (self.args.dynamic_sampling or self.args.prompt_memory):
            return numbers
        self._reserve = self._further_numbers(numbers)
        if self.prompt_memory is None:
            return numbers
        chosen = list(islice(self._remembered(chain(numbers, self._reserve)), len(numbers)))
        skipped = len(set(numbers) - set(chosen))
        # Where the whole data set is solved or hopeless, prompts are drawn as they come.
        chosen += [number for number in numbers if number not in chosen][: len(numbers) - len(chosen)]
        self.metrics.add_values("prompts/skipped", torch.tensor([float(skipped)]))
        return chosen

    def rollout(self, experience: Experience) -> None:
        is_first = experience.draw == 0 and self.args.dynamic_sampling
        if not (is_first and self._rollouts.can_refill and type(self).score is FourSteps.score):
            return super().rollout(experience)
        most = self._most_resampled(len(experience.prompts))
        further = (
            self.new_experience([self.train_dataset[number]], draw)
            for draw, number in enumerate(islice(self._kept_reserve(), most), start=1)
        )
        experience.refill = refilling = Refilling(
            experience,
            further,
            self._rollouts.begin,
            lambda group: self._rollouts.check(group, group.rollouts),
            self.begin_scoring,
        )
        super().rollout(experience)
        refilling.fill_in(experience)

    def resample(self, experience: Experience, numbers: Sequence[int]) -> Experience:
        self._remember(experience)
        if not self.args.dynamic_sampling:
            return experience
        most, wanted = self._most_resampled(len(numbers)), len(numbers)
        return DynamicSampling(most, self.accelerator).fill(experience, wanted, self._kept_reserve(), self._draw)

    def _most_resampled(self, wanted: int) -> int:
        return self.args.max_resampled or _RESAMPLED * wanted

    def _kept_reserve(self) -> Iterator[int]:
        return self._reserve if self.prompt_memory is None else self._remembered(self._reserve)

    def _draw(self, numbers: Sequence[int], draw: int) -> Experience:
        experience = self.new_experience(self.read_prompts(numbers), draw)
        self.rollout(experience)
        self.score(experience)
        self._remember(experience)
        return experience

    def _further_numbers(self, numbers: Sequence[int]) -> Iterator[int]:
        args, seed = self.args, (self.args.seed, self.rollouts_made)
        return iter(reserve_numbers(len(self.train_dataset), numbers, seed, args.process_index, args.world_size))

    def _remembered(self, numbers: Iterator[int]) -> Iterator[int]:
        """Those prompts that the memory keeps."""
        seed = (self.args.seed, self.rollouts_made)
        return (number for number in numbers if self.prompt_memory.keeps(self.train_dataset.row_of(number), seed))

    def _remember(self, experience: Experience) -> None:
        if self.prompt_memory is None:
            return
        groups = experience.rewards.view(-1, experience.num_generations)
        solved, tried = (groups > self.args.solved_above).sum(dim=1).tolist(), (~groups.isnan()).sum(dim=1).tolist()
        rows = [prompt["index"] for prompt in experience.prompts]
        self.prompt_memory.add(gather_object(list(zip(rows, solved, tried, strict=True))))
        shares = self.prompt_memory.shares()
        for name, share in zip(("prompts/solved", "prompts/hopeless"), shares, strict=True):
            self.metrics.add_values(name, torch.tensor([share]))
