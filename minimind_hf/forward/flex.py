# SPDX-License-Identifier: Apache-2.0
"""Attention in the shared-prompt layout through FlexAttention: one kernel for all groups, for devices.

Each token of the row attends to a part of its prompt and to the end of its own sequence, so three integers per token
are the whole mask, sliding windows included, and one compiled kernel serves every layer and every batch of a shape.
The blocks of 128 x 128 that are visible, wholly or in part, are found on the host from lengths alone. Rows are padded
to a few lengths (buckets), since every other shape compiles anew; a token of padding sees itself alone, so its blocks
cost next to nothing.

FlexAttention has no dropout. It is compiled on devices; on a CPU, where it has no backward pass, it runs eagerly with
all scores in memory, which is for tests of this mask.
"""

import warnings
from dataclasses import dataclass, field
from functools import cache
from types import FunctionType

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from .on_device import to_device

BLOCK = 128  # tokens; FlexAttention's own block
_ROWS_AT_ONCE = 2**24  # counts held at a time while blocks are searched: 64 MiB


@dataclass
class Sequences:
    """The sequences of a row in order: prompts, each followed by its completions.

    Args:
        lengths (`list[int]`): Tokens of each.
        prompt_starts (`list[int]`): Where the prompt begins that each continues.
        prompt_lengths (`list[int]`): Tokens of that prompt; 0 for the prompts themselves.
    """

    lengths: list[int] = field(default_factory=list)
    prompt_starts: list[int] = field(default_factory=list)
    prompt_lengths: list[int] = field(default_factory=list)

    def add(self, length: int, prompt_start: int, prompt_length: int) -> None:
        self.lengths.append(length)
        self.prompt_starts.append(prompt_start)
        self.prompt_lengths.append(prompt_length)


@dataclass
class Visible:
    """What each token attends to: `[prompt_first, prompt_stop)` of its prompt, and `[own_first, itself]`.

    Args:
        prompt_first, prompt_stop, own_first (`Tensor` of shape `(T,)`, int32): Positions in the row.
    """

    prompt_first: Tensor
    prompt_stop: Tensor
    own_first: Tensor

    def mask_mod(self):
        """The mask function of FlexAttention."""
        prompt_first, prompt_stop, own_first = self.prompt_first, self.prompt_stop, self.own_first

        def sees(batch, head, query, key):
            in_prompt = (key >= prompt_first[query]) & (key < prompt_stop[query])
            return in_prompt | ((key >= own_first[query]) & (key <= query))

        return sees

    def to(self, device: torch.device) -> "Visible":
        return Visible(*(to_device(each, device) for each in (self.prompt_first, self.prompt_stop, self.own_first)))


@dataclass
class FlexMask:
    """The mask of a row that is padded to `length` tokens."""

    length: int
    block_mask: BlockMask


def bucket(tokens: int) -> int:
    """The length that a row is padded to: 128, 192 -> 256, 384, 512, 768, 1024 and so on, two for each doubling."""
    power = 1 << max(tokens - 1, BLOCK - 1).bit_length()
    smaller = power * 3 // 4
    return smaller if tokens <= smaller and smaller % BLOCK == 0 else power


def visible(sequences: Sequences, window: int | None, length: int) -> Visible:
    """Returns what every token of a row attends to, the row padded to `length`."""
    counts = torch.tensor(sequences.lengths)
    starts = torch.cumsum(counts, 0) - counts
    per_sequence = (starts, torch.tensor(sequences.prompt_starts), torch.tensor(sequences.prompt_lengths))
    start, prompt_start, prompt_length = (each.repeat_interleave(counts) for each in per_sequence)
    token = torch.arange(len(start))
    prompt_stop = prompt_start + prompt_length
    if window is not None:
        place = prompt_length + token - start  # in its own sequence, which begins with the prompt
        prompt_start = prompt_start + (place - window + 1).clamp(min=0)
        start = torch.maximum(start, token - window + 1)
    padding = torch.arange(len(token), length)
    nothing = torch.zeros_like(padding)
    rows = ((prompt_start, nothing), (prompt_stop, nothing), (start, padding))
    return Visible(*(torch.cat(parts).int() for parts in rows))


def flex_mask(sequences: Sequences, window: int | None, device: torch.device) -> FlexMask:
    """Builds the block mask of a row on the host and moves it to the device."""
    length = bucket(sum(sequences.lengths))
    sees = visible(sequences, window, length)
    some, whole = visible_blocks(sees)
    blocks = BlockMask.from_kv_blocks(
        *_ordered(some & ~whole), *_ordered(whole), BLOCK_SIZE=BLOCK, seq_lengths=(length, length)
    )
    for name, value in vars(blocks).items():  # its own `to` waits
        if isinstance(value, Tensor):
            setattr(blocks, name, to_device(value, device))
    blocks.mask_mod = sees.to(device).mask_mod()
    return FlexMask(length, blocks)


def visible_blocks(sees: Visible) -> tuple[Tensor, Tensor]:
    """Which blocks of keys the tokens of a block see.

    Returns:
        `(some, whole)`: Booleans of shape `(blocks, blocks)`: some token sees some key, every token sees every key.
    """
    count = len(sees.own_first) // BLOCK
    first_keys = torch.arange(count, dtype=torch.int32) * BLOCK
    some, whole = [], []
    at_once = max(1, _ROWS_AT_ONCE // (count * BLOCK))
    for begin in range(0, count, at_once):
        rows = slice(begin * BLOCK, (begin + at_once) * BLOCK)
        own_stop = torch.arange(rows.start, min(rows.stop, count * BLOCK), dtype=torch.int32) + 1
        seen = _overlap(sees.own_first[rows], own_stop, first_keys)
        seen += _overlap(sees.prompt_first[rows], sees.prompt_stop[rows], first_keys)
        lowest, highest = seen.view(-1, BLOCK, count).aminmax(dim=1)
        some.append(highest > 0)
        whole.append(lowest == BLOCK)
    return torch.cat(some), torch.cat(whole)


def _overlap(first: Tensor, stop: Tensor, first_keys: Tensor) -> Tensor:
    """Keys of each block in each interval: `(tokens, blocks)`."""
    end = torch.minimum(stop[:, None], first_keys + BLOCK)
    return (end - torch.maximum(first[:, None], first_keys)).clamp(min=0)


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """The number of blocks in each row and their indices, those of others after them."""
    indices = blocks.int().argsort(dim=1, descending=True, stable=True)
    return blocks.sum(dim=1, dtype=torch.int32)[None, None], indices.int()[None, None]


def flex_row_attention(query: Tensor, key: Tensor, value: Tensor, mask: FlexMask, scaling: float | None) -> Tensor:
    """Attention over a row of tokens.

    Args:
        query (`Tensor` of shape `(1, heads, T, dim)`): Queries; `heads` is a multiple of `kv_heads`.
        key (`Tensor` of shape `(1, kv_heads, T, dim)`), value (`Tensor` of shape `(1, kv_heads, T, width)`): Keys and
            values.
        mask ([`FlexMask`]): Of the row.
        scaling (`float`, *optional*): Factor of the scores; unset, one over the root of `dim`.

    Returns:
        `Tensor` of shape `(1, heads, T, width)`
    """
    tokens, device = query.shape[2], query.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else value.dtype
    states = [F.pad(each.to(dtype), (0, 0, 0, mask.length - tokens)) for each in (query, key, value)]
    with torch.autocast(device, enabled=False):
        output = _attention(states, scaling)(*states, mask.block_mask, scaling)
    return output[:, :, :tokens]


def _attention(states: list[Tensor], scaling: float | None):
    if states[0].device.type == "cpu":
        return _eager
    shapes = tuple((*each.shape, each.dtype) for each in states)
    return compiled(shapes, scaling, torch.is_grad_enabled() and any(each.requires_grad for each in states))


def _attend(query: Tensor, key: Tensor, value: Tensor, block_mask: BlockMask, scaling: float | None) -> Tensor:
    return flex_attention(query, key, value, block_mask=block_mask, scale=scaling, enable_gqa=True)


def _eager(*inputs) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        return _attend(*inputs)


@cache
def compiled(shapes: tuple, scaling: float | None, has_gradient: bool, backend: str = "inductor"):
    """Returns the kernel of one shape. torch counts compilations per code object, and after eight goes on without
    compiling and without a word, so every shape has a code object of its own."""
    own = FunctionType(_attend.__code__.replace(), globals(), f"attend_{shapes[0][2]}")
    return torch.compile(own, dynamic=False, fullgraph=True, backend=backend)
