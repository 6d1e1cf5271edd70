# SPDX-License-Identifier: Apache-2.0
"""Experience: what one process gathers in a rollout, and the micro-batches that it is trained on."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from trl.trainer.utils import pad

from ...rollout import Rollout
from .micro_batch import MicroBatch


@dataclass
class Experience:
    """One rollout of one process: N completions, prompt-major.

    Args:
        prompts (`list[dict]`): N // num_generations examples of a `PromptDataset`.
        rollouts (`list[Rollout]`): N completions.
        completions (`list`): N texts, or one-message conversations for conversational prompts.
        num_generations (`int`): Completions per prompt.
        signals (`Tensor` of shape `(N, F)`): What each reward function said; NaN where it does not apply.
        rewards (`Tensor` of shape `(N,)`): Weighted sums; NaN for completions left out of their group.
        seed (`int`): The seed that they were sampled with.
        notes (`dict[str, list]`): Columns that reward functions noted for the log of completions, N values each.
        step (`int`): Optimizer steps done when they were sampled.
        advantages (`Tensor` of shape `(N,)`): Filled in by the algorithm.
        tokens (`dict[str, Tensor]`, *optional*): All completions as one padded batch with what the algorithm knows of
            each token, where it judges them one by one.
        num_stand_ins (`int`): Prompts at the end that were drawn only so that all processes have as many, without
            rewards and with nothing that a loss sees.
    """

    prompts: list[dict]
    rollouts: list[Rollout]
    completions: list
    num_generations: int
    signals: Tensor
    rewards: Tensor
    seed: int = 0
    notes: dict[str, list] = field(default_factory=dict)
    step: int = 0
    advantages: Tensor | None = None
    tokens: MicroBatch | None = None
    num_stand_ins: int = 0

    @property
    def counted(self) -> "Experience":
        """What numbers are made of: all but the stand-ins."""
        if self.num_stand_ins == 0:
            return self
        prompts = len(self.prompts) - self.num_stand_ins
        rows = prompts * self.num_generations
        return replace(
            self,
            prompts=self.prompts[:prompts],
            rollouts=self.rollouts[:rows],
            completions=self.completions[:rows],
            signals=self.signals[:rows],
            rewards=self.rewards[:rows],
            advantages=None if self.advantages is None else self.advantages[:rows],
            tokens=self.tokens and {name: tensor[:rows] for name, tensor in self.tokens.items()},
            num_stand_ins=0,
        )

    def prompt_of(self, index: int) -> dict:
        """Returns the prompt that completion `index` answers."""
        return self.prompts[index // self.num_generations]

    @property
    def lengths(self) -> Tensor:
        return torch.tensor([len(rollout.completion_ids) for rollout in self.rollouts])

    @property
    def truncated(self) -> Tensor:
        return torch.tensor([rollout.is_truncated for rollout in self.rollouts])


def add_stand_ins(experience: Experience, prompts: list[dict], rollouts: Sequence[Rollout]) -> None:
    """Appends completions that take part in every pass and exchange, and in no loss and no number."""
    if not prompts:
        return
    experience.prompts = [*experience.prompts, *prompts]
    unseen = [replace(rollout, loss_mask=[0] * len(rollout.completion_ids)) for rollout in rollouts]
    experience.rollouts = [*experience.rollouts, *unseen]
    experience.completions = [*experience.completions, *("" for _ in rollouts)]
    for name in ("signals", "rewards"):
        own = getattr(experience, name)
        unknown = own.new_full((len(rollouts), *own.shape[1:]), float("nan"))
        setattr(experience, name, torch.cat([own, unknown]))
    experience.num_stand_ins = len(prompts)


def joined(experiences: Sequence[Experience]) -> Experience:
    """Returns several that were sampled by the same weights as one; only the last may have stand-ins.

    What reward functions noted for the log of completions is left out.
    """
    first, last = experiences[0], experiences[-1]
    return Experience(
        prompts=[prompt for part in experiences for prompt in part.prompts],
        rollouts=[rollout for part in experiences for rollout in part.rollouts],
        completions=[completion for part in experiences for completion in part.completions],
        num_generations=first.num_generations,
        signals=torch.cat([part.signals for part in experiences]),
        rewards=torch.cat([part.rewards for part in experiences]),
        seed=first.seed,
        step=first.step,
        num_stand_ins=last.num_stand_ins,
    )


def split_experience(
    experience: Experience, batch_size: int, pad_token_id: int, mask_truncated: bool, device: torch.device
) -> list[MicroBatch]:
    """Cuts an experience into padded micro-batches of `batch_size` completions, in order.

    Returns:
        `list[dict[str, Tensor]]` with, for B completions of at most C tokens behind prompts of at most P:
        `prompt_ids`, `prompt_mask` of shape `(B, P)`, padded left; `completion_ids`, `completion_mask` (real tokens),
        `loss_mask` (tokens that the loss sees), `old_logps` of shape `(B, C)`, padded right; `group_ids` (which
        prompt of the rollout), `rows` (which row of the dataset), `sampled_at` (at which step) and, once the
        experience has them, `advantages` of shape `(B,)`.
    """
    return [
        _micro_batch(
            experience,
            range(start, min(start + batch_size, len(experience.rollouts))),
            pad_token_id,
            mask_truncated,
            device,
        )
        for start in range(0, len(experience.rollouts), batch_size)
    ]


def _micro_batch(
    experience: Experience, indices: range, pad_token_id: int, mask_truncated: bool, device: torch.device
) -> MicroBatch:
    rollouts = [experience.rollouts[index] for index in indices]
    prompts = [torch.tensor(experience.prompt_of(index)["prompt_ids"]) for index in indices]
    completions = [torch.tensor(rollout.completion_ids) for rollout in rollouts]
    loss_masks = [_loss_mask(rollout, mask_truncated) for rollout in rollouts]
    old_logps = [torch.tensor(rollout.logprobs, dtype=torch.float32) for rollout in rollouts]
    batch = {
        "prompt_ids": pad(prompts, padding_value=pad_token_id, padding_side="left"),
        "prompt_mask": pad([torch.ones_like(ids) for ids in prompts], padding_value=0, padding_side="left"),
        "completion_ids": pad(completions, padding_value=pad_token_id),
        "completion_mask": pad([torch.ones_like(ids) for ids in completions], padding_value=0),
        "loss_mask": pad(loss_masks, padding_value=0),
        "old_logps": pad(old_logps, padding_value=0.0),
        "rows": torch.tensor([experience.prompt_of(index)["index"] for index in indices]),
        "group_ids": torch.tensor([index // experience.num_generations for index in indices]),
        "sampled_at": torch.full((len(indices),), experience.step),
    }
    if experience.advantages is not None:
        batch["advantages"] = experience.advantages[indices.start : indices.stop]
    return {name: tensor.to(device) for name, tensor in batch.items()}


def _loss_mask(rollout: Rollout, mask_truncated: bool) -> Tensor:
    if mask_truncated and rollout.is_truncated:
        return torch.zeros(len(rollout.completion_ids), dtype=torch.long)
    if rollout.loss_mask is not None:
        return torch.tensor(rollout.loss_mask, dtype=torch.long)
    return torch.ones(len(rollout.completion_ids), dtype=torch.long)
