# SPDX-License-Identifier: Apache-2.0
"""The lean decoder: a step of a MiniMind-, Qwen- or Llama-shaped model in as few and as cheap operations as can be.

Prompts are computed without padding, one behind the other. A step attends to the prompt of each group where it lies,
with the queries of all its rows at once, and to each row's own tokens; nothing of a prompt is copied to its rows.
Projections run in the rollout dtype on packed weights. The residual stream, norms, keys, values and attention are
float32, whatever the rollout dtype: at one token a row their cost is in their number, not in their size.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .fast_weights import FastWeights, Layer
from .key_values import KeyValues
from .scheduler import Decoder

MAX_PREFILL_TOKENS = 4096

# Takes a layer's number, queries (tokens, kv_heads, query heads per kv head, head_dim), keys and values (tokens,
# kv_heads, head_dim) in float32; returns what the heads read, (tokens, heads * head_dim).
Attention = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class FastDecoder(Decoder):
    """Decodes on packed weights.

    Args:
        max_rows (`int`): Rows that run at a time.
        max_groups (`int`): Prompts that are held at a time.
        max_prompt_length (`int`): The longest prompt.
        max_completion_length (`int`): The longest completion.
    """

    can_refill = True

    def __init__(
        self,
        weights: FastWeights,
        *,
        max_rows: int,
        max_groups: int,
        max_prompt_length: int,
        max_completion_length: int,
    ):
        self.weights = weights
        self.device = weights.device
        shape = {"num_layers": len(weights.layers), "num_heads": weights.num_kv_heads, "head_dim": weights.head_dim}
        self.prompts = KeyValues(**shape, max_rows=max_groups, max_length=max_prompt_length, device=self.device)
        self.completions = KeyValues(**shape, max_rows=max_rows, max_length=max_completion_length, device=self.device)
        self.turns = _turns(weights, max_prompt_length + max_completion_length)
        self.groups: list[int] = []  # which group each row of `prompts` holds
        self.prompt_lengths: list[int] = []  # of those
        self.num_groups = 0
        self.rows: list[int] = []  # the group of each row
        self.lengths: list[int] = []  # tokens of each row that have keys and values
        self.batch: _Batch | None = None  # unset after a change of rows or groups

    def prefill(self, prompt_ids: Sequence[Sequence[int]]) -> Tensor:
        logits, chunk = [], []
        for ids in prompt_ids:
            if chunk and sum(map(len, chunk)) + len(ids) > MAX_PREFILL_TOKENS:
                logits.append(self._prefill_chunk(chunk))
                chunk = []
            chunk.append(ids)
        logits.append(self._prefill_chunk(chunk))
        return torch.cat(logits)

    def start_rows(self, groups: Sequence[int]) -> None:
        self.rows += groups
        self.lengths += [0] * len(groups)
        self.completions.reserve(len(self.rows), max(self.lengths) + 1)
        self.batch = None

    def reorder(self, rows: Sequence[int]) -> None:
        moved = [(to, source) for to, source in enumerate(rows) if to != source]
        self.completions.move(*_columns(moved), length=max(self.lengths))
        self.rows = [self.rows[row] for row in rows]
        self.lengths = [self.lengths[row] for row in rows]
        self.batch = None

    def release(self, groups: Sequence[int]) -> None:
        for group in groups:
            hole, last = self.groups.index(group), len(self.groups) - 1
            if hole != last:
                self.prompts.move([hole], [last], self.prompt_lengths[last])
            for slots in (self.groups, self.prompt_lengths):
                slots[hole] = slots[last]
                slots.pop()
        self.batch = None

    def step(self, token_ids: Tensor) -> Tensor:
        self.completions.reserve(len(self.rows), max(self.lengths) + 1)
        if self.batch is None:
            self.batch = _Batch(self)
        batch = self.batch
        batch.next_token()
        logits = self._forward(token_ids, self.turns.index_select(0, batch.positions), batch.attend)
        self.lengths = [length + 1 for length in self.lengths]
        return logits

    def _prefill_chunk(self, prompt_ids: Sequence[Sequence[int]]) -> Tensor:
        first = len(self.groups)
        lengths = [len(ids) for ids in prompt_ids]
        self.groups += range(self.num_groups, self.num_groups + len(prompt_ids))
        self.num_groups += len(prompt_ids)
        self.prompt_lengths += lengths
        self.prompts.reserve(len(self.groups), max(lengths))
        self.batch = None
        token_ids = torch.tensor([token for ids in prompt_ids for token in ids], device=self.device)
        positions = torch.cat([torch.arange(length) for length in lengths]).to(self.device)
        last = torch.tensor(lengths, device=self.device).cumsum(0) - 1

        def attend(number: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            outputs = []
            parts = [part.transpose(0, 1).split(lengths, dim=1) for part in (queries.flatten(1, 2), keys, values)]
            memory = self.prompts.memory[number]
            for slot, (query, key, value) in enumerate(zip(*parts, strict=True), start=first):
                memory[0, slot, :, : key.shape[1]] = key
                memory[1, slot, :, : key.shape[1]] = value
                outputs.append(self._causal_attention(query, key, value))
            return torch.cat(outputs)

        return self._forward(token_ids, self.turns[positions], attend, last)

    def _causal_attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention inside one prompt; all of shape `(heads, tokens, head_dim)`, the result `(tokens, width)`."""
        shared = self.weights.num_heads // self.weights.num_kv_heads
        query, key, value = (
            tensor.unsqueeze(0)
            for tensor in (query, key.repeat_interleave(shared, 0), value.repeat_interleave(shared, 0))
        )
        output = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=1.0)
        return output[0].transpose(0, 1).flatten(1)

    def _forward(self, token_ids: Tensor, turns: Tensor, attend: Attention, last: Tensor | None = None) -> Tensor:
        """The model on single tokens; `last` chooses those whose logits are wanted (unset: all)."""
        weights = self.weights
        dtype = weights.dtype
        x = weights.embedding.index_select(0, token_ids).float()
        for number, layer in enumerate(weights.layers):
            queries, keys, values = self._heads(layer, layer.attention_norm(x).to(dtype), turns)
            read = attend(number, queries, keys, values)
            if last is not None and number == len(weights.layers) - 1:
                x, read = x[last], read[last]  # the other tokens have served their keys and values
            x += layer.output(read.to(dtype))
            x += layer.mlp(layer.mlp_norm(x).to(dtype))
        return weights.head(weights.norm(x).to(dtype))

    def _heads(self, layer: Layer, x: Tensor, turns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        num_kv_heads, head_dim = self.weights.num_kv_heads, self.weights.head_dim
        heads = layer.qkv(x).float().view(len(x), -1, head_dim)
        turned, values = heads[:, :-num_kv_heads], heads[:, -num_kv_heads:]
        if layer.head_norm is not None:
            turned = layer.head_norm(turned)
        pairs = torch.view_as_complex(turned.view(len(x), -1, head_dim // 2, 2))
        turned = torch.view_as_real(pairs * turns).view(len(x), num_kv_heads, -1, head_dim)
        return turned[:, :, :-1], turned[:, :, -1], values


class _Views(NamedTuple):
    """The part of a layer's memory that a batch reads and writes."""

    memory: Tensor  # that of `completions` as a whole: it is another one after it has grown
    prompt_keys: Tensor  # (groups * kv_heads, head_dim, prompt_length)
    prompt_values: Tensor  # (groups * kv_heads, prompt_length, head_dim)
    row_keys: Tensor  # (rows * kv_heads, space, head_dim)
    row_values: Tensor


class _Batch:
    """What a step needs to know of rows and groups, as tensors; good until either changes.

    Rows of a group take neighbouring cells of a grid of groups x most rows of a group. Where the grid is full and in
    the order of the rows (most of the time), going from one to the other costs nothing.
    """

    def __init__(self, decoder: FastDecoder):
        self.prompts, self.completions = decoder.prompts, decoder.completions
        self.num_kv_heads, self.head_dim = decoder.weights.num_kv_heads, decoder.weights.head_dim
        self.shared = decoder.weights.num_heads // self.num_kv_heads
        self.num_rows, self.num_groups = len(decoder.rows), len(decoder.groups)
        device = decoder.device
        slot_of_group = {group: slot for slot, group in enumerate(decoder.groups)}
        slots = [slot_of_group[group] for group in decoder.rows]
        self._lay_out(slots, device)
        prompt_lengths = [decoder.prompt_lengths[slot] for slot in slots]
        self.prompt_length = max(decoder.prompt_lengths)
        self.length = max(decoder.lengths)  # of the longest row, without the token to come
        self.lengths = torch.tensor(decoder.lengths, device=device)
        self.positions = self.lengths + torch.tensor(prompt_lengths, device=device) - 1
        self.lengths -= 1
        self.ragged = min(decoder.lengths) < self.length or min(prompt_lengths) < self.prompt_length
        self.prompt_lengths = torch.tensor(prompt_lengths, device=device)
        self.views: list[_Views] = []

    def _lay_out(self, slots: list[int], device: torch.device) -> None:
        cells = [[] for _ in range(self.num_groups)]
        for row, slot in enumerate(slots):
            cells[slot].append(row)
        self.rows_per_group = max(map(len, cells))
        grid = [rows + [0] * (self.rows_per_group - len(rows)) for rows in cells]
        rank = {row: slot * self.rows_per_group + i for slot, rows in enumerate(cells) for i, row in enumerate(rows)}
        row_of_cell = [row for rows in grid for row in rows]
        self.is_full = row_of_cell == list(range(self.num_rows))
        self.row_of_cell = torch.tensor(row_of_cell, device=device)
        self.cell_of_row = torch.tensor([rank[row] for row in range(self.num_rows)], device=device)

    def next_token(self) -> None:
        """Moves on to the next token of every row."""
        self.positions += 1
        self.lengths += 1
        self.length += 1
        if not self.views or self.views[0].memory is not self.completions.memory:
            self.views = [self._view(number) for number in range(self.completions.num_layers)]
            row_starts = torch.arange(self.num_rows * self.num_kv_heads, device=self.lengths.device)
            self.row_starts = row_starts * self.completions.memory.shape[4]
        if self.ragged:
            self.write_slots = self.row_starts + self.lengths.repeat_interleave(self.num_kv_heads)
            self.mask = self._mask()

    def _view(self, number: int) -> "_Views":
        prompt_keys, prompt_values = (
            memory[: self.num_groups, :, : self.prompt_length].flatten(0, 1) for memory in self.prompts.memory[number]
        )
        keys, values = (memory[: self.num_rows].flatten(0, 1) for memory in self.completions.memory[number])
        return _Views(self.completions.memory, prompt_keys.transpose(1, 2), prompt_values, keys, values)

    def _mask(self) -> Tensor:
        """What hides the slots behind the end of shorter prompts and rows, to be added to scores."""
        device = self.lengths.device
        hidden = torch.cat(
            [
                torch.arange(self.prompt_length, device=device) >= self.prompt_lengths[:, None],
                torch.arange(self.length, device=device) > self.lengths[:, None],
            ],
            dim=1,
        )
        return torch.zeros(hidden.shape, device=device).masked_fill_(hidden, float("-inf"))[:, None, None]

    def attend(self, number: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Stores the keys and values of the new tokens, and reads prompts and rows up to them."""
        view = self.views[number]
        self._write(view.row_keys, keys)
        self._write(view.row_values, values)
        rows, heads, shared, split = self.num_rows, self.num_kv_heads, self.shared, self.prompt_length

        prompt_scores = self._to_rows(torch.bmm(self._to_groups(queries), view.prompt_keys))
        row_scores = torch.bmm(queries.flatten(0, 1), view.row_keys[:, : self.length].transpose(1, 2))
        scores = torch.cat([prompt_scores, row_scores.view(rows, heads, shared, self.length)], dim=-1)
        if self.ragged:
            scores += self.mask
        shares = scores.softmax(dim=-1)
        read = self._to_rows(torch.bmm(self._to_groups(shares[..., :split]), view.prompt_values))
        read = read.reshape(rows * heads, shared, self.head_dim)
        read = torch.baddbmm(read, shares.flatten(0, 1)[..., split:], view.row_values[:, : self.length])
        return read.view(rows, -1)

    def _write(self, memory: Tensor, new: Tensor) -> None:
        new = new.reshape(-1, self.head_dim)
        if self.ragged:
            memory.flatten(0, 1).index_copy_(0, self.write_slots, new)
        else:
            memory.select(1, self.length - 1).copy_(new)

    def _to_groups(self, of_rows: Tensor) -> Tensor:
        """`(rows, kv_heads, shared, n)` to `(groups * kv_heads, rows_per_group * shared, n)`."""
        if not self.is_full:
            of_rows = of_rows.index_select(0, self.row_of_cell)
        split = of_rows.view(self.num_groups, self.rows_per_group, *of_rows.shape[1:])
        of_cells = self.num_groups * self.num_kv_heads, self.rows_per_group * self.shared, of_rows.shape[-1]
        return split.transpose(1, 2).reshape(of_cells)

    def _to_rows(self, of_groups: Tensor) -> Tensor:
        """The way back."""
        grid = of_groups.view(self.num_groups, self.num_kv_heads, self.rows_per_group, self.shared, -1).transpose(1, 2)
        of_cells = grid.flatten(0, 1)
        return of_cells if self.is_full else of_cells.index_select(0, self.cell_of_row)


def _turns(weights: FastWeights, length: int) -> Tensor:
    """RoPE of all positions as complex numbers, of shape `(length, 1, head_dim / 2)`, by the model's own module."""
    positions = torch.arange(length, device=weights.device).unsqueeze(0)
    cos, sin = weights.rotary(torch.empty(0, device=weights.device), position_ids=positions)
    half = weights.head_dim // 2
    return torch.complex(cos[0, :, :half], sin[0, :, :half]).unsqueeze(1)


def _columns(pairs: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [to for to, _ in pairs], [source for _, source in pairs]
