# SPDX-License-Identifier: Apache-2.0
"""The lean decoder: a step of a MiniMind, Qwen or Llama model with as few and as cheap operations as possible.

Prompts are computed without padding, one after the other. A step attends to the prompt of each group in place, with
the queries of all its rows at once, and to each row's own tokens; prompts are not copied to rows. Projections run in
the rollout dtype on packed weights. The residual stream, norms, keys, values and attention are always float32: with
one token per row their cost depends on their number, not on their size.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ...forward.on_device import on_device
from .decoder import Decoder
from .fast_attention import Heads, RowAttention
from .fast_blocks import BlockAttention
from .fast_runs import Run, RunAttention
from .fast_weights import FastWeights
from .key_values import KeyValues

MAX_PREFILL_TOKENS = 4096

# Takes a layer's number and the values of its new tokens (tokens, kv_heads, head_dim) in float32; their queries and
# keys are in the `Heads`. Returns the attention output, (tokens, heads * head_dim).
Attention = Callable[[int, Tensor], Tensor]


@dataclass
class _ParkedRow:
    """A row that is not in the batch.

    Attributes:
        memory (`Tensor` of shape `(layers, 2, kv_heads, length, head_dim)`): Its own keys and values.
    """

    group: int
    memory: Tensor


class FastDecoder(Decoder):
    """Decodes on packed weights.

    Args:
        max_rows (`int`): Rows that run at a time.
        max_groups (`int`): Prompts that are kept at a time.
        max_prompt_length (`int`): The longest prompt that is known; others may come.
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
        self.groups: list[int] = []  # the group of each row of `prompts`
        self.prompt_lengths: list[int] = []  # of these groups
        self.num_groups = 0
        self.rows: list[int] = []  # the group of each row
        self.lengths: list[int] = []  # tokens of each row that have keys and values
        self.attention: RowAttention | None = None  # unset after a change of rows or groups

    def prefill(self, prompt_ids: Sequence[Sequence[int]]) -> Tensor:
        lengths = [len(ids) for ids in prompt_ids]
        longest = max(lengths) + self.completions.max_length
        if longest > len(self.turns):  # of a prompt that was not known at the start
            self.turns = _turns(self.weights, longest)
        return torch.cat([self._prefill_chunk(prompt_ids[chunk]) for chunk in _chunks(lengths)])

    def start_rows(self, groups: Sequence[int]) -> None:
        self.rows += groups
        self.lengths += [0] * len(groups)
        self.completions.reserve(len(self.rows), max(self.lengths) + 1)
        self.attention = None

    def reorder(self, rows: Sequence[int]) -> None:
        moved = [(to, source) for to, source in enumerate(rows) if to != source]
        self.completions.move(*_columns(moved), length=max(self.lengths))
        self.rows = [self.rows[row] for row in rows]
        self.lengths = [self.lengths[row] for row in rows]
        self.attention = None

    def park(self, rows: Sequence[int], excess: Sequence[int]) -> list[_ParkedRow]:
        parked = []
        for row, count in zip(rows, excess, strict=True):
            own = self.completions.memory[:, :, row, :, : self.lengths[row] - count]
            parked.append(_ParkedRow(self.rows[row], own.clone(memory_format=torch.contiguous_format)))
        return parked

    def extend(self, parked: Sequence[_ParkedRow], token_ids: Sequence[Sequence[int]]) -> Tensor:
        first = len(self.rows)
        self.rows += [row.group for row in parked]
        self.lengths += [row.memory.shape[3] for row in parked]
        self.completions.reserve(len(self.rows), max(self.lengths) + 1)
        for number, row in enumerate(parked, start=first):
            self.completions.memory[:, :, number, :, : row.memory.shape[3]] = row.memory
        return self._append_to(range(first, len(self.rows)), token_ids)

    def _append_to(self, rows: Sequence[int], token_ids: Sequence[Sequence[int]]) -> Tensor:
        """Appends several tokens to each of some rows, and returns the logits after the last of each."""
        counts = [len(ids) for ids in token_ids]
        longest = max(self.lengths[row] + count for row, count in zip(rows, counts, strict=True))
        self.completions.reserve(len(self.rows), longest)
        self.attention = None
        logits = [self._run_chunk(rows[chunk], token_ids[chunk]) for chunk in _chunks(counts)]
        for row, count in zip(rows, counts, strict=True):
            self.lengths[row] += count
        return torch.cat(logits)

    def append(self, token_ids: Sequence[Sequence[int]]) -> Tensor:
        counts = [len(ids) for ids in token_ids]
        ends = [length + count for length, count in zip(self.lengths, counts, strict=True)]
        self.completions.reserve(len(self.rows), max(ends))
        self.attention = None
        joined, _ = self._joined(token_ids)
        attention = BlockAttention(
            self.weights, self.prompts, self.completions, self._slots(), self.prompt_lengths, self.lengths, counts
        )
        attention.heads.turns = self.turns.index_select(0, attention.positions)
        logits = self._forward(joined, attention.heads, attention)
        self.lengths = ends
        return logits

    def cut(self, counts: Sequence[int]) -> None:
        self.lengths = [length - count for length, count in zip(self.lengths, counts, strict=True)]
        self.attention = None

    def release(self, groups: Sequence[int]) -> None:
        for group in groups:
            hole, last = self.groups.index(group), len(self.groups) - 1
            if hole != last:
                self.prompts.move([hole], [last], self.prompt_lengths[last])
            for slots in (self.groups, self.prompt_lengths):
                slots[hole] = slots[last]
                slots.pop()
        self.attention = None

    def step(self, token_ids: Tensor) -> Tensor:
        self.completions.reserve(len(self.rows), max(self.lengths) + 1)
        if self.attention is None:
            self.attention = self._attention()
        attention = self.attention
        attention.next_token()
        attention.heads.turns = self.turns.index_select(0, attention.positions)
        logits = self._forward(token_ids, attention.heads, attention)
        self.lengths = [length + 1 for length in self.lengths]
        return logits

    def _attention(self) -> RowAttention:
        return RowAttention(
            self.weights, self.prompts, self.completions, self._slots(), list(self.prompt_lengths), list(self.lengths)
        )

    def _slots(self) -> list[int]:
        """The row of `prompts` with the prompt of each row."""
        slot_of_group = {group: slot for slot, group in enumerate(self.groups)}
        return [slot_of_group[group] for group in self.rows]

    def _prefill_chunk(self, prompt_ids: Sequence[Sequence[int]]) -> Tensor:
        first = len(self.groups)
        lengths = [len(ids) for ids in prompt_ids]
        self.groups += range(self.num_groups, self.num_groups + len(prompt_ids))
        self.num_groups += len(prompt_ids)
        self.prompt_lengths += lengths
        self.prompts.reserve(len(self.groups), max(lengths))
        self.attention = None
        token_ids, last = self._joined(prompt_ids)
        heads = Heads(self.weights, len(token_ids))
        heads.turns = torch.cat([self.turns[:length] for length in lengths])

        def attend(number: int, values: Tensor) -> Tensor:
            outputs = []
            parts = [
                part.transpose(0, 1).split(lengths, dim=1)
                for part in (heads.queries.flatten(1, 2), heads.keys, values)
            ]
            memory = self.prompts.memory[number]
            for slot, (query, key, value) in enumerate(zip(*parts, strict=True), start=first):
                memory[0, slot, :, : key.shape[1]] = key
                memory[1, slot, :, : key.shape[1]] = value
                outputs.append(self._causal_attention(query, key, value))
            return torch.cat(outputs)

        return self._forward(token_ids, heads, attend, last)

    def _run_chunk(self, rows: Sequence[int], token_ids: Sequence[Sequence[int]]) -> Tensor:
        slots, runs = self._slots(), []
        for row, ids in zip(rows, token_ids, strict=True):
            slot = slots[row]
            runs.append(Run(row, slot, self.prompt_lengths[slot], self.lengths[row], len(ids)))
        joined, last = self._joined(token_ids)
        heads = Heads(self.weights, len(joined))
        heads.turns = torch.cat([self.turns[run.position : run.position + run.count] for run in runs])
        attend = RunAttention(heads, self.prompts, self.completions, runs)
        return self._forward(joined, heads, attend, last)

    def _joined(self, token_ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """All tokens of some sequences, one sequence after the other, and the places of the last of each."""
        joined = on_device([token for ids in token_ids for token in ids], self.device)
        return joined, on_device([len(ids) for ids in token_ids], self.device).cumsum(0) - 1

    def _causal_attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention inside one prompt, from `(heads, tokens, head_dim)` to `(tokens, width)`."""
        shared = self.weights.num_heads // self.weights.num_kv_heads
        query, key, value = (
            tensor.unsqueeze(0)
            for tensor in (query, key.repeat_interleave(shared, 0), value.repeat_interleave(shared, 0))
        )
        output = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=1.0)
        return output[0].transpose(0, 1).flatten(1)

    def _forward(self, token_ids: Tensor, heads: Heads, attend: Attention, last: Tensor | None = None) -> Tensor:
        """The model on single tokens; `last` selects the tokens whose logits are needed (unset: all)."""
        weights = self.weights
        dtype = weights.dtype
        x = weights.embedding.index_select(0, token_ids).float()
        for number, layer in enumerate(weights.layers):
            values = heads.take(layer, layer.qkv(layer.attention_norm(x).to(dtype)))
            read = attend(number, values)
            if last is not None and number == len(weights.layers) - 1:
                x, read = x[last], read[last]  # of the other tokens only keys and values are needed
            x += layer.output(read.to(dtype))
            x += layer.mlp(layer.mlp_norm(x).to(dtype))
        return weights.head(weights.norm(x).to(dtype))


def _turns(weights: FastWeights, length: int) -> Tensor:
    """RoPE at all positions as complex numbers, of shape `(length, 1, head_dim / 2)`, from the model's own module."""
    positions = torch.arange(length, device=weights.device).unsqueeze(0)
    cos, sin = weights.rotary(torch.empty(0, device=weights.device), position_ids=positions)
    half = weights.head_dim // 2
    return torch.complex(cos[0, :, :half], sin[0, :, :half]).unsqueeze(1)


def _chunks(counts: Sequence[int]) -> Iterator[slice]:
    """Divides sequences into neighbors of at most `MAX_PREFILL_TOKENS` tokens together, or one that is longer."""
    start = tokens = 0
    for number, count in enumerate(counts):
        if number > start and tokens + count > MAX_PREFILL_TOKENS:
            yield slice(start, number)
            start, tokens = number, 0
        tokens += count
    yield slice(start, len(counts))


def _columns(pairs: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [to for to, _ in pairs], [source for _, source in pairs]
