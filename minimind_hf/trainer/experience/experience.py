# SPDX-License-Identifier: Apache-2.0
"""The data of one rollout in one process, filled in step by step, and its split into micro-batches."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ...rollout import Rollout
from ..metrics import Metrics
from .micro_batch import MicroBatch, select_rows


@dataclass
class Experience:
    """One rollout of one process: P prompts and N = P x num_generations completions, prompt-major.

    The last prompts may be stand-ins. They only give all processes the same number of prompts: they get no rewards and
    count in no loss and no metric.
    """

    # Known before the rollout
    prompts: list[dict]  # P rows of a `PromptDataset`, stand-ins last
    num_generations: int
    seed: int = 0  # of the sampling
    step: int = 0  # optimizer steps done before the sampling
    num_stand_ins: int = 0
    metrics: Metrics = field(default_factory=Metrics)  # collects everything that is measured

    # Step 1: rollout
    rollouts: list[Rollout] = field(default_factory=list)  # N

    # Step 2: score
    completions: list = field(default_factory=list)  # N texts, or conversations with one message
    signals: Tensor | None = None  # (N, F): the rewards of each reward function; NaN where it does not apply
    rewards: Tensor | None = None  # (N,): weighted sums; NaN for completions left out of their group
    notes: dict[str, list] = field(default_factory=dict)  # columns added to the completion log by reward functions

    # Step 3: advantages
    advantages: Tensor | None = None  # (N,)
    tokens: MicroBatch | None = None  # all N with per-token data, for algorithms with per-token advantages

    @property
    def num_counted(self) -> int:
        """Number of completions that count: all except those of stand-ins."""
        return (len(self.prompts) - self.num_stand_ins) * self.num_generations

    @property
    def counted(self) -> "Experience":
        """The experience without the stand-ins, for metrics."""
        if self.num_stand_ins == 0:
            return self
        rows = self.num_counted
        return replace(
            self,
            prompts=self.prompts[: rows // self.num_generations],
            num_stand_ins=0,
            rollouts=self.rollouts[:rows],
            completions=self.completions[:rows],
            signals=None if self.signals is None else self.signals[:rows],
            rewards=None if self.rewards is None else self.rewards[:rows],
            advantages=None if self.advantages is None else self.advantages[:rows],
            tokens=None if self.tokens is None else select_rows(self.tokens, range(rows)),
        )

    def prompt_of(self, index: int) -> dict:
        """Returns the prompt that completion `index` answers."""
        return self.prompts[index // self.num_generations]

    @property
    def prompt_ids(self) -> list[list[int]]:
        return [prompt["prompt_ids"] for prompt in self.prompts]

    @property
    def lengths(self) -> Tensor:
        """Number of tokens of each completion, `(N,)`."""
        return torch.tensor([len(rollout.completion_ids) for rollout in self.rollouts])

    @property
    def truncated(self) -> Tensor:
        """Whether each completion was truncated, `(N,)`."""
        return torch.tensor([rollout.is_truncated for rollout in self.rollouts])

    def fill_up(self) -> None:
        """Gives the stand-ins NaN rewards, and takes their tokens out of every loss."""
        first = self.num_counted
        missing = len(self.rollouts) - first
        self.rollouts[first:] = [
            replace(rollout, loss_mask=[0] * len(rollout.completion_ids)) for rollout in self.rollouts[first:]
        ]
        self.completions = [*self.completions, *[""] * missing]
        self.signals = _with_nan_rows(self.signals, missing)
        self.rewards = _with_nan_rows(self.rewards, missing)


def _with_nan_rows(values: Tensor, count: int) -> Tensor:
    return torch.cat([values, values.new_full((count, *values.shape[1:]), float("nan"))])


def joined(experiences: Sequence[Experience]) -> Experience:
    """Joins experiences that were sampled with the same weights; only the last may have stand-ins.

    The columns that reward functions added to the completion log are dropped.
    """
    first, last = experiences[0], experiences[-1]
    return replace(
        first,
        prompts=[prompt for part in experiences for prompt in part.prompts],
        num_stand_ins=last.num_stand_ins,
        rollouts=[rollout for part in experiences for rollout in part.rollouts],
        completions=[completion for part in experiences for completion in part.completions],
        signals=torch.cat([part.signals for part in experiences]),
        rewards=torch.cat([part.rewards for part in experiences]),
        notes={},
    )


def split_experience(
    experience: Experience, batch_size: int, mask_truncated: bool, device: torch.device
) -> list[MicroBatch]:
    """Splits an experience into micro-batches of `batch_size` completions, in order.

    Args:
        experience ([`Experience`]): N completions.
        batch_size (`int`): Completions per micro-batch; the last one may have fewer.
        mask_truncated (`bool`): Whether truncated completions are left out of the loss.
        device (`torch.device`): Device of the tensors.

    Returns:
        `list[MicroBatch]`: With advantages if the experience has them.
    """
    starts = range(0, len(experience.rollouts), batch_size)
    return [_micro_batch(experience, slice(start, start + batch_size), mask_truncated, device) for start in starts]


def _micro_batch(experience: Experience, part: slice, mask_truncated: bool, device: torch.device) -> MicroBatch:
    rollouts = experience.rollouts[part]
    indices = range(len(experience.rollouts))[part]
    prompts = [experience.prompt_of(index) for index in indices]
    masks = [torch.tensor(_loss_mask(rollout, mask_truncated)) for rollout in rollouts]
    old_logps = [torch.tensor(rollout.logprobs, dtype=torch.float32) for rollout in rollouts]
    return MicroBatch(
        prompt_ids=[prompt["prompt_ids"] for prompt in prompts],
        completion_ids=[rollout.completion_ids for rollout in rollouts],
        group_ids=[index // experience.num_generations for index in indices],
        device=device,
        rows=[prompt["index"] for prompt in prompts],
        sampled_at=experience.step,
        loss_mask=pad_sequence(masks, batch_first=True).to(device),
        old_logps=pad_sequence(old_logps, batch_first=True).to(device),
        advantages=None if experience.advantages is None else experience.advantages[part].to(device),
    )


def _loss_mask(rollout: Rollout, mask_truncated: bool) -> list[int]:
    if mask_truncated and rollout.is_truncated:
        return [0] * len(rollout.completion_ids)
    return rollout.loss_mask or [1] * len(rollout.completion_ids)
