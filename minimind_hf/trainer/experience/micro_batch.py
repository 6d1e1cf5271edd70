# SPDX-License-Identifier: Apache-2.0
"""The input of one call of a loss: completions as token ids, and per-token data.

Tokens stay ragged on the host until a layout packs them (see `forward/token_batch.py`). Per-token data are tensors of
shape `(N, C)` on the device, for N completions of at most C tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from ...algorithms import LossInputs
from ...forward.kept_tokens import KeptTokens
from ...forward.on_device import on_device, to_device
from ...forward.token_batch import TokenBatch


@dataclass(kw_only=True, eq=False)
class MicroBatch(TokenBatch):
    """N completions that are computed together. An empty micro-batch stands for a skipped update.

    Prompts, completions, groups and the device come from [`TokenBatch`]. Optional fields are `None` if the algorithm
    or the settings do not need them.
    """

    # Filled in when a rollout is split into micro-batches
    rows: list[int]  # row of the train dataset that each completion answers
    sampled_at: int  # optimizer steps done when the completions were sampled
    loss_mask: Tensor  # (N, C): 0 for padding, tokens that the policy did not sample, and completions left out
    old_logps: Tensor  # (N, C): from the engine; with rollout_correction from the trainer, before any update

    behind: int = 0  # optimizer steps by which the sampling weights were older than the trainer's (sync_every)

    # Filled in with the advantages
    has_advantage: list[bool] | None = None  # whether a token of the completion has one that is not 0 (GRPO)
    advantages: Tensor | None = None  # (N,) per completion (GRPO), or (N, C) per token (PPO)
    old_values: Tensor | None = None  # (N, C): from the critic, before any update
    returns: Tensor | None = None  # (N, C): the critic's targets

    # Filled in before the first update
    ref_logps: Tensor | None = None  # (N, C): from the reference, with a KL penalty
    token_weights: Tensor | None = None  # (N, C): with rollout_correction

    # Filled in by `part_of`, if a micro-batch is computed in parts
    rows_in_whole: list[int] | None = None  # indices of these rows in the whole micro-batch
    share: float = 1.0  # of the rows of the whole micro-batch
    local_tokens: Tensor | None = None  # (): tokens of the whole micro-batch that count in the loss

    @classmethod
    def skipped(cls, device: torch.device) -> "MicroBatch":
        """An empty micro-batch, in place of an update that is skipped."""
        nothing = torch.empty(0, 0, device=device)
        tokens = {"prompt_ids": [], "completion_ids": [], "group_ids": [], "device": device}
        return cls(**tokens, rows=[], sampled_at=0, loss_mask=nothing.long(), old_logps=nothing)

    def loss_inputs(self, logps: Tensor, denominator: Tensor, policy_mask: Tensor | None = None) -> LossInputs:
        """The inputs of a policy loss for this micro-batch.

        Args:
            logps (`Tensor` of shape `(N, C)`): Log-probabilities under the policy, with a graph.
            denominator (`Tensor` of shape `()`): Denominator of the loss of the optimizer step.
            policy_mask (`Tensor` of shape `(N, C)`, *optional*): Tokens that the policy term uses.
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
        """Slots of the padded layout, which transformers counts as the tokens of a batch."""
        return len(self) * (max(map(len, self.prompt_ids), default=0) + self.width)

    def state(self) -> dict:
        """Plain values and tensors for a checkpoint; [`MicroBatch.from_state`] reads them."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "device"}
        return values | {"kept": None if self.kept is None else [sets.state() for sets in self.kept]}

    @classmethod
    def from_state(cls, state: dict, device: torch.device) -> "MicroBatch":
        """Restores a micro-batch from [`~MicroBatch.state`], on a device."""
        placed = {name: _to(value, device) for name, value in state.items()}
        if placed.get("kept") is not None:
            placed["kept"] = [KeptTokens.from_state(sets) for sets in placed["kept"]]
        return cls(**placed, device=device)


def _to(value, device: torch.device):
    return to_device(value, device) if isinstance(value, Tensor) else value


def select_rows(batch: MicroBatch, rows: Sequence[int]) -> MicroBatch:
    """Returns some rows, with tensors no wider than they need."""
    index = on_device(rows, batch.device)
    width = max((len(batch.completion_ids[row]) for row in rows), default=0)

    def selected(value):
        if isinstance(value, list):
            return [value[row] for row in rows]
        if not isinstance(value, Tensor) or value.dim() == 0:
            return value
        return value[index] if value.dim() == 1 else value[index, :width].contiguous()

    return replace(batch, **{each.name: selected(getattr(batch, each.name)) for each in fields(batch)})


def put_rows(target: Tensor, rows: Sequence[int], source: Tensor) -> None:
    """Writes values computed for [`select_rows`] back to their rows in `target`, in place."""
    target[on_device(rows, target.device), : source.shape[1]] = source.to(target.dtype)


def fill_rows(batch: MicroBatch, parts: list[tuple[list[int], MicroBatch]], compute: Callable) -> Tensor:
    """Computes a tensor for each part of a batch, and joins them into one of shape `(N, C)`."""
    filled = None
    for rows, part in parts:
        computed = compute(part)
        filled = computed.new_zeros(len(batch), batch.width) if filled is None else filled
        put_rows(filled, rows, computed)
    return filled


def part_of(batch: MicroBatch, rows: Sequence[int]) -> MicroBatch:
    """Makes a part from some rows of a micro-batch; losses and gradients of the parts add up."""
    return replace(
        select_rows(batch, rows),
        rows_in_whole=list(rows),
        share=batch.share * len(rows) / len(batch),
        local_tokens=batch.loss_mask.sum() if batch.local_tokens is None else batch.local_tokens,
    )


def mini_batch_rows(num_rows: int, size: int, seed: int, iteration: int) -> list[list[int]]:
    """Returns the rows of each shuffled mini-batch of one pass over a rollout.

    Args:
        num_rows (`int`): Completions of the rollout.
        size (`int`): Completions per mini-batch.
        seed (`int`): Seed of the rollout.
        iteration (`int`): Number of the pass. The order is a pure function of (seed, iteration).
    """
    order = np.random.default_rng([seed, iteration]).permutation(num_rows).tolist()
    # The order within a mini-batch does not matter; sorting keeps completions of one prompt together.
    return [sorted(order[start : start + size]) for start in range(0, num_rows, size)]
