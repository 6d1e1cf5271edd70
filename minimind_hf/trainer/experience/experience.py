# SPDX-License-Identifier: Apache-2.0
"""The data of one rollout in one process, filled in step by step, and its split into micro-batches."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ...agent import Episode
from ...algorithms import spread_over_turns
from ...forward.kept_tokens import KeptTokens
from ...forward.on_device import to_device
from ...rollout import Refill, Rollout
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
    off_policy: list[bool] | None = None  # P: whether the completions are not the policy's own (distillation)
    metrics: Metrics = field(default_factory=Metrics)  # collects everything that is measured
    draw: int | None = None  # number of the pass of a training rollout; unset in evaluations
    refill: Refill | None = None  # draws further groups while the rollout runs

    # Step 1: rollout
    rollouts: list[Rollout] = field(default_factory=list)  # N
    episodes: list[Episode] | None = None  # N, of runs with tools or environments
    given_prompts: list[dict] | None = None  # N, of runs with a rollout_func
    behind: int = 0  # optimizer steps since the engine got weights

    # Step 2: score
    completions: list = field(default_factory=list)  # N texts or conversations
    signals: Tensor | None = None  # (N, F): the rewards of each reward function; NaN where it does not apply
    rewards: Tensor | None = None  # (N,): weighted sums; NaN for completions left out of their group
    turn_rewards: list[list[float]] | None = None  # N: weighted sums by turn, if there are rewards of turns
    notes: dict[str, list] = field(default_factory=dict)  # columns added to the completion log by reward functions

    # Step 3: advantages
    advantages: Tensor | None = None  # (N,)
    turn_advantages: Tensor | None = None  # (N, T): by turn, if there are rewards of turns (GRPO)
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
        return selected(replace(self, num_stand_ins=0), range(len(self.prompts) - self.num_stand_ins))

    def prompt_of(self, index: int) -> dict:
        """Returns the prompt that completion `index` answers, as an environment or a rollout_func left it."""
        if self.episodes is not None:
            return self.episodes[index].prompt
        return self.prompts[index // self.num_generations] if self.given_prompts is None else self.given_prompts[index]

    @property
    def prompt_ids(self) -> list[list[int]]:
        return [prompt["prompt_ids"] for prompt in self.prompts]

    @property
    def policy_ids(self) -> list[list[int]]:
        """The tokens of each completion that the policy sampled; all, if an engine says that it sampled none."""
        return [
            [token for token, own in zip(rollout.completion_ids, _own_mask(rollout), strict=True) if own]
            or rollout.completion_ids
            for rollout in self.rollouts
        ]

    @property
    def lengths(self) -> Tensor:
        """Number of the policy's tokens in each completion, `(N,)`."""
        return torch.tensor([sum(_own_mask(rollout)) for rollout in self.rollouts])

    @property
    def num_turns(self) -> list[int]:
        """Turns of the policy in each completion, N."""
        return [len(rollout.turns) for rollout in self.rollouts]

    @property
    def rewards_by_turn(self) -> list[list[float]]:
        """`turn_rewards`; if there are none, the rewards on the last turn of each completion."""
        if self.turn_rewards is not None:
            return self.turn_rewards
        return [
            [0.0] * (turns - 1) + [reward] if turns else []
            for turns, reward in zip(self.num_turns, self.rewards.tolist(), strict=True)
        ]

    @property
    def rewards_to_place(self) -> Tensor:
        """The rewards of completions, `(N,)`, or of turns, `(N, T)`, padded with 0, if those have rewards."""
        if self.turn_rewards is None:
            return self.rewards
        rows = [torch.tensor(row, dtype=self.rewards.dtype) for row in self.turn_rewards]
        return pad_sequence(rows, batch_first=True).to(self.rewards.device)

    def own_masks(self, part: slice = slice(None)) -> Tensor:
        """1 for the tokens of some completions that the policy sampled, `(rows, longest of these)`."""
        return pad_sequence([torch.tensor(_own_mask(each)) for each in self.rollouts[part]], batch_first=True)

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
        if self.turn_rewards is not None:
            self.turn_rewards = [*self.turn_rewards, *[[]] * missing]


def _with_nan_rows(values: Tensor, count: int) -> Tensor:
    return torch.cat([values, values.new_full((count, *values.shape[1:]), float("nan"))])


def selected(experience: Experience, groups: Sequence[int]) -> Experience:
    """Some groups of an experience, by their numbers."""
    size = experience.num_generations
    rows = [row for group in groups for row in range(group * size, (group + 1) * size)]
    index = torch.tensor(rows, dtype=torch.long)

    def of(values):
        if values is None or (isinstance(values, list) and not values):  # not filled in yet
            return values
        return values[index.to(values.device)] if isinstance(values, Tensor) else [values[row] for row in rows]

    return replace(
        experience,
        prompts=[experience.prompts[group] for group in groups],
        off_policy=experience.off_policy and [experience.off_policy[group] for group in groups],
        rollouts=of(experience.rollouts),
        episodes=of(experience.episodes),
        given_prompts=of(experience.given_prompts),
        completions=of(experience.completions),
        signals=of(experience.signals),
        rewards=of(experience.rewards),
        turn_rewards=of(experience.turn_rewards),
        notes={name: of(column) for name, column in experience.notes.items()},
        advantages=of(experience.advantages),
        turn_advantages=of(experience.turn_advantages),
        tokens=None if experience.tokens is None else select_rows(experience.tokens, rows),
    )


def joined(experiences: Sequence[Experience], keeps_notes: bool = False) -> Experience:
    """Joins experiences that were sampled with the same weights; only the last may have stand-ins.

    Args:
        experiences (`Sequence[Experience]`): At least one.
        keeps_notes (`bool`): Whether the columns that reward functions added to the completion log are kept, with
            `None` where a function added none.
    """
    first, last = experiences[0], experiences[-1]
    with_turns = any(part.turn_rewards is not None for part in experiences)
    with_episodes, with_given = first.episodes is not None, first.given_prompts is not None
    return replace(
        first,
        prompts=[prompt for part in experiences for prompt in part.prompts],
        num_stand_ins=last.num_stand_ins,
        rollouts=[rollout for part in experiences for rollout in part.rollouts],
        episodes=[episode for part in experiences for episode in part.episodes] if with_episodes else None,
        given_prompts=[prompt for part in experiences for prompt in part.given_prompts] if with_given else None,
        completions=[completion for part in experiences for completion in part.completions],
        signals=torch.cat([part.signals for part in experiences]),
        rewards=torch.cat([part.rewards for part in experiences]),
        turn_rewards=[row for part in experiences for row in part.rewards_by_turn] if with_turns else None,
        notes=_joined_notes(experiences) if keeps_notes else {},
    )


def _joined_notes(experiences: Sequence[Experience]) -> dict[str, list]:
    names = dict.fromkeys(name for part in experiences for name in part.notes)
    return {
        name: [note for part in experiences for note in part.notes.get(name) or [None] * len(part.rollouts)]
        for name in names
    }


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
    masks = [_loss_mask(rollout, mask_truncated) for rollout in rollouts]
    old_logps = [torch.tensor(rollout.logprobs, dtype=torch.float32) for rollout in rollouts]
    return MicroBatch(
        prompt_ids=[prompt["prompt_ids"] for prompt in prompts],
        completion_ids=[rollout.completion_ids for rollout in rollouts],
        group_ids=_group_ids(experience, indices),
        device=device,
        scored=None if all(map(all, masks)) else masks,
        kept=_kept(rollouts),
        rows=[prompt["index"] for prompt in prompts],
        sampled_at=experience.step,
        behind=experience.behind,
        loss_mask=to_device(pad_sequence([torch.tensor(mask) for mask in masks], batch_first=True), device),
        old_logps=to_device(pad_sequence(old_logps, batch_first=True), device),
        advantages=_advantages(experience, part, device),
        has_advantage=_has_advantage(experience, part),
    )


def _kept(rollouts: Sequence[Rollout]) -> list[KeptTokens] | None:
    if all(rollout.kept is None for rollout in rollouts):
        return None
    none = np.empty(0, dtype=np.int32)
    return [KeptTokens.of(rollout.kept or [none] * len(rollout.completion_ids)) for rollout in rollouts]


def _group_ids(experience: Experience, indices: range) -> list[int]:
    """An id for each prompt; the environments of a group may have made different prompts of one."""
    if experience.episodes is None:
        return [index // experience.num_generations for index in indices]
    keys = [
        (index // experience.num_generations, tuple(experience.prompt_of(index)["prompt_ids"])) for index in indices
    ]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return [numbers[key] for key in keys]


def _advantages(experience: Experience, part: slice, device: torch.device) -> Tensor | None:
    """Those of some completions, `(rows,)`, or of their tokens where turns have their own, `(rows, C)`."""
    if experience.turn_advantages is None:
        return None if experience.advantages is None else experience.advantages[part].to(device)
    return spread_over_turns(experience.turn_advantages[part].to(device), experience.own_masks(part).to(device))


def _has_advantage(experience: Experience, part: slice) -> list[bool] | None:
    of_turns, of_completions = experience.turn_advantages, experience.advantages
    if of_turns is not None:
        return (of_turns[part] != 0).any(dim=1).tolist()
    return None if of_completions is None else (of_completions[part] != 0).tolist()


def _loss_mask(rollout: Rollout, mask_truncated: bool) -> list[int]:
    if mask_truncated and rollout.is_truncated:
        return [0] * len(rollout.completion_ids)
    return _own_mask(rollout)


def _own_mask(rollout: Rollout) -> list[int]:
    return rollout.loss_mask or [1] * len(rollout.completion_ids)
