# SPDX-License-Identifier: Apache-2.0
"""What a loss sees at a time: completions as token ids, and what is known of each of their tokens.

Tokens stay on the host, of unequal length, until a layout packs them (see `forward/token_batch.py`). What is known of
each completion token is a tensor of shape `(N, C)` on the device, for N completions of at most C tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from ...algorithms import LossInputs
from ...forward.token_batch import TokenBatch


@dataclass(kw_only=True, eq=False)
class MicroBatch(TokenBatch):
    """N completions that are computed together; an empty one stands for an update that is skipped.

    Prompts, completions, groups and the device are those of [`TokenBatch`]. Optional fields stay unset where the
    algorithm or the settings do not need them.
    """

    # Filled in when a rollout is cut into micro-batches
    rows: list[int]  # row of the train dataset that each completion answers
    sampled_at: int  # optimizer steps done when the completions were drawn
    loss_mask: Tensor  # (N, C): 0 for padding, for tokens that the policy did not draw, for what is left out
    old_logps: Tensor  # (N, C): of the engine at sampling; with rollout_correction of the trainer, before any update

    # Filled in with the advantages
    advantages: Tensor | None = None  # (N,) of each completion (GRPO), or (N, C) of each token (PPO)
    old_values: Tensor | None = None  # (N, C): of the critic, before any update
    returns: Tensor | None = None  # (N, C): the critic's targets

    # Filled in before the first update
    ref_logps: Tensor | None = None  # (N, C): of the reference, with a KL penalty
    token_weights: Tensor | None = None  # (N, C): with rollout_correction

    # Filled in by `part_of`, where a micro-batch is computed in parts
    rows_in_whole: list[int] | None = None  # which of its rows these are
    share: float = 1.0  # of its rows
    local_tokens: Tensor | None = None  # (): tokens of the whole micro-batch that the loss sees

    @classmethod
    def skipped(cls, device: torch.device) -> "MicroBatch":
        """An empty one, in the place of an update that is not made."""
        nothing = torch.empty(0, 0, device=device)
        tokens = {"prompt_ids": [], "completion_ids": [], "group_ids": [], "device": device}
        return cls(**tokens, rows=[], sampled_at=0, loss_mask=nothing.long(), old_logps=nothing)

    def loss_inputs(self, logps: Tensor, denominator: Tensor, policy_mask: Tensor | None = None) -> LossInputs:
        """What a policy loss is told of this micro-batch.

        Args:
            logps (`Tensor` of shape `(N, C)`): Of the policy, with a graph.
            denominator (`Tensor` of shape `()`): Of the loss of the optimizer step.
            policy_mask (`Tensor` of shape `(N, C)`, *optional*): Tokens that the policy's term sees.
        """
        return LossInputs(
            logps,
            self.old_logps,
            self.advantages,
            self.loss_mask,
            ref_logps=self.ref_logps,
            policy_mask=policy_mask,
            token_weights=self.token_weights,
            denominator=denominator,
            local_tokens=self.local_tokens,
        )

    @property
    def num_padded_tokens(self) -> int:
        """Slots of the padded layout: what transformers counts as the tokens of a batch."""
        return len(self) * (max(map(len, self.prompt_ids), default=0) + self.width)

    def state(self) -> dict:
        """Plain values and tensors, for a checkpoint; [`MicroBatch.from_state`] reads it."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "device"}

    @classmethod
    def from_state(cls, state: dict, device: torch.device) -> "MicroBatch":
        """What was saved by [`~MicroBatch.state`], on a device."""
        placed = {name: _to(value, device) for name, value in state.items()}
        return cls(**placed, device=device)


def _to(value, device: torch.device):
    return value.to(device) if isinstance(value, Tensor) else value


def select_rows(batch: MicroBatch, rows: Sequence[int]) -> MicroBatch:
    """Returns some rows, with tensors no wider than they need."""
    index = torch.tensor(rows, dtype=torch.long).to(batch.device)
    width = max((len(batch.completion_ids[row]) for row in rows), default=0)

    def selected(value):
        if isinstance(value, list):
            return [value[row] for row in rows]
        if not isinstance(value, Tensor) or value.dim() == 0:
            return value
        return value[index] if value.dim() == 1 else value[index, :width].contiguous()

    return replace(batch, **{each.name: selected(getattr(batch, each.name)) for each in fields(batch)})


def put_rows(target: Tensor, rows: Sequence[int], source: Tensor) -> None:
    """Writes what was computed for [`select_rows`] back to where these rows are, in place."""
    target[torch.tensor(rows, dtype=torch.long).to(target.device), : source.shape[1]] = source


def part_of(batch: MicroBatch, rows: Sequence[int]) -> MicroBatch:
    """Some rows of a micro-batch as a part of it, whose loss and gradient add up with those of the other parts."""
    return replace(
        select_rows(batch, rows),
        rows_in_whole=list(rows),
        share=len(rows) / len(batch),
        local_tokens=batch.loss_mask.sum(),
    )


def mini_batch_rows(num_rows: int, size: int, seed: int, iteration: int) -> list[list[int]]:
    """Returns the rows of each shuffled mini-batch of one pass over a rollout.

    Args:
        num_rows (`int`): Completions of the rollout.
        size (`int`): Completions of a mini-batch.
        seed (`int`): Of the rollout.
        iteration (`int`): Number of the pass. The order is a pure function of (seed, iteration).
    """
    order = np.random.default_rng([seed, iteration]).permutation(num_rows).tolist()
    # Within a mini-batch the order means nothing; completions of one prompt are kept together.
    return [sorted(order[start : start + size]) for start in range(0, num_rows, size)]
