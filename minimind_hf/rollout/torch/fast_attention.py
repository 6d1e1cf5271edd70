# SPDX-License-Identifier: Apache-2.0
"""Attention of a decode step: from the new token of each row to the prompt of its group and to the row's own tokens.

The prompt of a group is read in place, with the queries of all its rows at once; it is not copied to the rows. A step
has few numbers and many operations, so starting operations is what costs. As much as possible is therefore laid out
once for all layers and steps, and memory is written in place.
"""

import torch
from torch import Tensor

from ...forward.on_device import on_device
from .fast_weights import FastWeights, Layer
from .key_values import KeyValues


class Heads:
    """The heads of some tokens in one layer: normalized, rotated by RoPE, in float32. The next layer overwrites them.

    Attributes:
        queries (`Tensor` of shape `(tokens, kv_heads, query heads per kv head, head_dim)`)
        keys (`Tensor` of shape `(tokens, kv_heads, head_dim)`)
        turns (`Tensor` of shape `(tokens, 1, head_dim / 2)`): RoPE at the tokens' positions, as complex numbers.
    """

    def __init__(self, weights: FastWeights, tokens: int):
        self.num_values, self.head_dim = weights.num_kv_heads, weights.head_dim
        self.num_turned = weights.num_heads + weights.num_kv_heads
        self.turned = torch.empty(tokens, self.num_turned, self.head_dim, device=weights.device)
        self.pairs = torch.view_as_complex(self.turned.unflatten(2, (-1, 2)))
        by_key = self.turned.unflatten(1, (weights.num_kv_heads, -1))
        self.queries, self.keys = by_key[:, :, :-1], by_key[:, :, -1]
        self.turns: Tensor | None = None

    def take(self, layer: Layer, projected: Tensor) -> Tensor:
        """Takes the output of [`Layer.qkv`] and returns the values, of shape `(tokens, kv_heads, head_dim)`."""
        heads = projected.float().view(len(projected), -1, self.head_dim)
        turned, values = heads.split((self.num_turned, self.num_values), dim=1)
        if layer.head_norm is None:
            self.turned.copy_(turned)
        else:
            layer.head_norm(turned, self.turned)
        self.pairs.mul_(self.turns)
        return values


class Grid:
    """Maps a vector per query head from the order of rows to the order of groups and back.

    Rows of a group have neighboring cells in a grid of groups x (most rows of any group). If the grid is full and in
    the order of the rows (most of the time), nothing is looked up.

    Args:
        slots (`list[int]`): The position of each row's group among the groups.
        num_groups (`int`), num_kv_heads (`int`), shared (`int`): Number of groups, key heads, queries per key head.
    """

    def __init__(self, slots: list[int], num_groups: int, num_kv_heads: int, shared: int, device: torch.device):
        members = [[] for _ in range(num_groups)]
        for row, slot in enumerate(slots):
            members[slot].append(row)
        rows_per_group = max(map(len, members))
        row_of_cell = [row for rows in members for row in rows + [0] * (rows_per_group - len(rows))]
        cell_of_row = {
            row: slot * rows_per_group + i for slot, rows in enumerate(members) for i, row in enumerate(rows)
        }
        self.shape = (num_groups, num_kv_heads, rows_per_group, shared)
        self.is_full = row_of_cell == list(range(len(slots)))
        self.row_of_cell = on_device(row_of_cell, device)
        self.cell_of_row = on_device([cell_of_row[row] for row in range(len(slots))], device)

    def buffer(self, width: int) -> "Cells":
        return Cells(self, width)


class Cells:
    """A buffer in the order of groups.

    Attributes:
        of_groups (`Tensor` of shape `(groups * kv_heads, rows_per_group * shared, width)`)
    """

    def __init__(self, grid: Grid, width: int):
        groups, heads, rows, shared = grid.shape
        self.grid = grid
        buffer = torch.zeros(groups, heads, rows, shared, width, device=grid.row_of_cell.device)
        self.of_groups = buffer.view(groups * heads, rows * shared, width)
        self.of_cells = buffer.transpose(1, 2)

    def put(self, of_rows: Tensor) -> Tensor:
        """Fills the buffer from `(rows, kv_heads, shared, width)` and returns it."""
        if not self.grid.is_full:
            of_rows = of_rows.index_select(0, self.grid.row_of_cell)
        self.of_cells.copy_(of_rows.view(self.of_cells.shape))
        return self.of_groups

    def get(self, of_rows: Tensor) -> None:
        """Writes the buffer to `(rows, kv_heads, shared, width)`."""
        if self.grid.is_full:
            of_rows.view(self.of_cells.shape).copy_(self.of_cells)
        else:
            of_rows.copy_(self.of_cells.flatten(0, 1).index_select(0, self.grid.cell_of_row))


class RowAttention:
    """What a step needs to know about rows and groups, as tensors. Valid until either changes.

    Args:
        prompts (`KeyValues`), completions (`KeyValues`): Keys and values of groups and rows.
        slots (`list[int]`): The row of `prompts` with the prompt of each row.
        prompt_lengths (`list[int]`): Of the groups.
        lengths (`list[int]`): Of the rows: tokens that have keys and values.
    """

    def __init__(
        self,
        weights: FastWeights,
        prompts: KeyValues,
        completions: KeyValues,
        slots: list[int],
        prompt_lengths: list[int],
        lengths: list[int],
    ):
        self.prompts, self.completions = prompts, completions
        self.num_rows, self.num_kv_heads, self.head_dim = len(slots), weights.num_kv_heads, weights.head_dim
        self.shared = weights.num_heads // self.num_kv_heads
        self.device = weights.device
        self.heads = Heads(weights, self.num_rows)
        self.prompt_length, self.length = max(prompt_lengths), max(lengths)
        of_rows = [prompt_lengths[slot] for slot in slots]
        self.prompt_lengths = on_device(of_rows, self.device)
        self.lengths = on_device(lengths, self.device)  # with the new token after a step, like `length`
        self.uneven = min(lengths) < self.length
        self.ragged = self.uneven or min(of_rows) < self.prompt_length
        self._lay_out(Grid(slots, len(prompt_lengths), self.num_kv_heads, self.shared, self.device))
        self.memory: Tensor | None = None

    def _lay_out(self, grid: Grid) -> None:
        self.queries, self.read_of_prompts = grid.buffer(self.head_dim), grid.buffer(self.head_dim)
        self.prompt_scores, self.prompt_shares = grid.buffer(self.prompt_length), grid.buffer(self.prompt_length)
        self.own_queries = self.heads.queries.flatten(0, 1)
        self.read = torch.empty(self.num_rows, self.num_kv_heads, self.shared, self.head_dim, device=self.device)
        self.own_read, self.read_of_rows = self.read.flatten(0, 1), self.read.flatten(1)
        used = self.prompts.memory[:, :, : grid.shape[0], :, : self.prompt_length].flatten(2, 3)
        self.prompt_keys, self.prompt_values = used[:, 0].transpose(2, 3).unbind(0), used[:, 1].unbind(0)

    @property
    def positions(self) -> Tensor:
        """Of the tokens of this step."""
        return self.prompt_lengths + self.lengths - 1

    def next_token(self) -> None:
        """Moves to the next token of every row."""
        self.lengths += 1
        self.length += 1
        if self.memory is not self.completions.memory:
            self._take_memory()
        used = self.own_memory.narrow(3, 0, self.length)
        self.own_keys, self.own_values = used[:, 0].transpose(2, 3).unbind(0), used[:, 1].unbind(0)
        end = self.prompt_length + self.length
        self.scores, self.shares = self.all_scores[..., :end], self.all_shares[..., :end]
        self.scores_of_prompts, self.own_scores = self.scores.split((self.prompt_length, self.length), dim=-1)
        self.shares_of_prompts, own_shares = self.shares.split((self.prompt_length, self.length), dim=-1)
        self.own_shares = own_shares.flatten(0, 1)
        if self.uneven:
            self.write_slots = self.row_starts + (self.lengths - 1).repeat_interleave(self.num_kv_heads)
        else:
            newest = self.of_rows.select(4, self.length - 1)
            self.new_keys, self.new_values = newest[:, 0].unbind(0), newest[:, 1].unbind(0)
        if self.ragged:
            self.mask = self._mask()

    def _take_memory(self) -> None:
        """Lays out what is as long as rows can become before the memory grows."""
        self.memory = self.completions.memory
        self.of_rows = self.memory[:, :, : self.num_rows]
        self.own_memory = self.of_rows.flatten(2, 3)
        space = self.memory.shape[4]
        shape = (self.num_rows, self.num_kv_heads, self.shared, self.prompt_length + space)
        self.all_scores, self.all_shares = (torch.empty(shape, device=self.device) for _ in range(2))
        self.row_starts = torch.arange(self.num_rows * self.num_kv_heads, device=self.device) * space

    def _mask(self) -> Tensor:
        """Added to scores, hides the slots after the end of shorter prompts and rows."""
        hidden = torch.cat(
            [
                torch.arange(self.prompt_length, device=self.device) >= self.prompt_lengths[:, None],
                torch.arange(self.length, device=self.device) >= self.lengths[:, None],
            ],
            dim=1,
        )
        return torch.zeros(hidden.shape, device=self.device).masked_fill_(hidden, float("-inf"))[:, None, None]

    def __call__(self, number: int, values: Tensor) -> Tensor:
        """Stores the keys and values of the new tokens, and attends to prompts and rows up to them.

        Args:
            number (`int`): The layer whose queries and keys are in `heads`.
            values (`Tensor` of shape `(rows, kv_heads, head_dim)`): Of the new tokens.

        Returns:
            `Tensor` of shape `(rows, heads * head_dim)`: The next layer overwrites it.
        """
        self._write(number, values)
        queries = self.queries.put(self.heads.queries)
        torch.bmm(queries, self.prompt_keys[number], out=self.prompt_scores.of_groups)
        self.prompt_scores.get(self.scores_of_prompts)
        self.own_scores.copy_(torch.bmm(self.own_queries, self.own_keys[number]).view(self.own_scores.shape))
        if self.ragged:
            self.scores += self.mask
        torch.softmax(self.scores, dim=-1, out=self.shares)
        shares = self.prompt_shares.put(self.shares_of_prompts)
        torch.bmm(shares, self.prompt_values[number], out=self.read_of_prompts.of_groups)
        self.read_of_prompts.get(self.read)
        self.own_read.baddbmm_(self.own_shares, self.own_values[number])
        return self.read_of_rows

    def _write(self, number: int, values: Tensor) -> None:
        if not self.uneven:
            self.new_keys[number].copy_(self.heads.keys)
            self.new_values[number].copy_(values)
            return
        for kind, new in enumerate((self.heads.keys, values)):
            memory = self.of_rows[number, kind].view(-1, self.head_dim)
            memory.index_copy_(0, self.write_slots, new.reshape(-1, self.head_dim))
