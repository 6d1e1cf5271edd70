# SPDX-License-Identifier: Apache-2.0
"""Attention of a few new tokens of every row at once: to the prompt of their group, to the row, and causally to each
other.

A draft of some tokens per row is scored with as many operations as a decode step. To a prompt, the tokens of a row
are like further rows; to the row itself, its tokens are like the rows of a group.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...forward.on_device import on_device
from .fast_attention import Grid, Heads
from .fast_weights import FastWeights
from .key_values import KeyValues


class BlockAttention:
    """What one pass needs to know about its tokens, as tensors.

    Args:
        prompts (`KeyValues`), completions (`KeyValues`): Keys and values of groups and rows.
        slots (`Sequence[int]`): The row of `prompts` with the prompt of each row.
        prompt_lengths (`Sequence[int]`): Of the groups.
        lengths (`Sequence[int]`): Of the rows before the pass.
        counts (`Sequence[int]`): New tokens of each row, at least one.

    Attributes:
        heads ([`Heads`]): Of all new tokens, one row after the other.
        positions (`Tensor` of shape `(tokens,)`): Of the new tokens, prompts included.
    """

    def __init__(
        self,
        weights: FastWeights,
        prompts: KeyValues,
        completions: KeyValues,
        slots: Sequence[int],
        prompt_lengths: Sequence[int],
        lengths: Sequence[int],
        counts: Sequence[int],
    ):
        device, kv_heads, head_dim = weights.device, weights.num_kv_heads, weights.head_dim
        shared = weights.num_heads // kv_heads
        rows = [row for row, count in enumerate(counts) for _ in range(count)]
        places = [length + ahead for length, count in zip(lengths, counts, strict=True) for ahead in range(count)]
        self.heads = Heads(weights, len(rows))
        self.prompts = _Part(
            Grid([slots[row] for row in rows], len(prompt_lengths), kv_heads, shared, device),
            prompts.memory[:, :, : len(prompt_lengths)],
            max(prompt_lengths),
            head_dim,
        )
        self.memory = completions.memory[:, :, : len(counts)]
        self.rows = _Part(Grid(rows, len(counts), kv_heads, shared, device), self.memory, max(places) + 1, head_dim)
        places, of_prompts = on_device([places, [prompt_lengths[slots[row]] for row in rows]], device)
        self.positions = of_prompts + places
        self.mask = _hidden(of_prompts, self.prompts.length), _hidden(places + 1, self.rows.length)
        self.mask = torch.cat(self.mask, dim=1)[:, None, None]
        shape = (len(rows), kv_heads, shared)
        self.scores, self.shares = (torch.empty(*shape, self.mask.shape[-1], device=device) for _ in range(2))
        self.read, self.read_of_rows = (torch.empty(*shape, head_dim, device=device) for _ in range(2))
        heads = torch.arange(kv_heads, device=device)
        starts = (on_device(rows, device)[:, None] * kv_heads + heads) * self.memory.shape[4]
        self.write_slots = (starts + places[:, None]).flatten()

    def __call__(self, number: int, values: Tensor) -> Tensor:
        """Takes a layer's number and its values, as `fast_decoder.Attention` says."""
        for kind, new in enumerate((self.heads.keys, values)):
            memory = self.memory[number, kind].view(-1, new.shape[-1])
            memory.index_copy_(0, self.write_slots, new.reshape(-1, new.shape[-1]))
        lengths = (self.prompts.length, self.rows.length)
        for part, scores in zip((self.prompts, self.rows), self.scores.split(lengths, dim=-1), strict=True):
            part.score(number, self.heads.queries, scores)
        self.scores += self.mask
        torch.softmax(self.scores, dim=-1, out=self.shares)
        of_prompts, of_rows = self.shares.split(lengths, dim=-1)
        self.prompts.collect(number, of_prompts, self.read)
        self.rows.collect(number, of_rows, self.read_of_rows)
        return self.read.add_(self.read_of_rows).flatten(1)


class _Part:
    """Attention to the prompts, or to the rows.

    Args:
        grid ([`Grid`]): Tokens by the prompt or the row that they attend to.
        memory (`Tensor`): Keys and values of these, in their order.
        length (`int`): Slots that are attended to.
    """

    def __init__(self, grid: Grid, memory: Tensor, length: int, head_dim: int):
        self.length = length
        used = memory[:, :, :, :, :length].flatten(2, 3)
        self.keys, self.values = used[:, 0].transpose(2, 3), used[:, 1]
        self.queries, self.read = grid.buffer(head_dim), grid.buffer(head_dim)
        self.scores, self.shares = grid.buffer(length), grid.buffer(length)

    def score(self, number: int, queries: Tensor, scores: Tensor) -> None:
        torch.bmm(self.queries.put(queries), self.keys[number], out=self.scores.of_groups)
        self.scores.get(scores)

    def collect(self, number: int, shares: Tensor, read: Tensor) -> None:
        torch.bmm(self.shares.put(shares), self.values[number], out=self.read.of_groups)
        self.read.get(read)


def _hidden(visible: Tensor, length: int) -> Tensor:
    """Added to scores, hides what comes after the first slots of each token."""
    is_hidden = torch.arange(length, device=visible.device) >= visible[:, None]
    return torch.zeros(is_hidden.shape, device=visible.device).masked_fill_(is_hidden, float("-inf"))
