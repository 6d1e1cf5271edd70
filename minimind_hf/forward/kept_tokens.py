# SPDX-License-Identifier: Apache-2.0
"""The tokens that truncated sampling (`top_k`, `top_p`, `min_p`) kept when it drew: ragged, on the host.

A token is then scored over the set that it was drawn from, by every model that scores it. The sets are small next to
logits: ids where they are few, and never more than one bit per id of the vocabulary.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .on_device import to_device

WHOLE, BITS = 0, -1  # in `counts`, in place of a number of ids


@dataclass(eq=False)
class KeptTokens:
    """One set of token ids for each of K tokens.

    Args:
        counts (`np.ndarray` of shape `(K,)`): int32: how many ids are in the set; `WHOLE` (0) if nothing was cut;
            `BITS` (-1) if the set is a row of `bits`.
        ids (`np.ndarray` of shape `(sum of ids,)`): int32: the ids of all sets that are stored as ids, in order.
        bits (`np.ndarray` of shape `(number of BITS, bytes)`): uint8: bit `id % 8` of byte `id // 8` says whether the
            id is in the set.
    """

    counts: np.ndarray
    ids: np.ndarray
    bits: np.ndarray

    def __len__(self) -> int:
        return len(self.counts)

    @classmethod
    def of(cls, sets: Sequence[np.ndarray]) -> "KeptTokens":
        """Joins sets as engines return them: ids, or bits in an array of uint8; an empty array if nothing was cut."""
        is_bits = [each.dtype == np.uint8 and len(each) > 0 for each in sets]
        counts = [BITS if bits else len(each) for each, bits in zip(sets, is_bits, strict=True)]
        ids = [each for each, bits in zip(sets, is_bits, strict=True) if not bits]
        rows = [each for each, bits in zip(sets, is_bits, strict=True) if bits]
        return cls(
            np.array(counts, dtype=np.int32),
            np.concatenate([np.empty(0, np.int32), *ids]).astype(np.int32),
            np.stack(rows) if rows else np.empty((0, 0), np.uint8),
        )

    def holds(self, token_ids: np.ndarray) -> np.ndarray:
        """Whether each set, that is no whole vocabulary, has the token of its place: bool `(K,)`."""
        held = np.zeros(len(self), dtype=bool)
        of_ids = np.repeat(np.arange(len(self)), np.maximum(self.counts, 0))
        held[of_ids[self.ids == token_ids[of_ids]]] = True
        rows = (self.counts == BITS).nonzero()[0]
        at, shift = token_ids[rows] // 8, token_ids[rows] % 8
        held[rows] = (self.bits[np.arange(len(rows)), at] >> shift.astype(np.uint8)) & 1 if len(rows) else False
        return held

    def take(self, places: Sequence[int] | slice) -> "KeptTokens":
        """Returns the sets at some places, which are in order."""
        chosen = np.zeros(len(self), dtype=bool)
        chosen[places if isinstance(places, slice) else np.asarray(places, dtype=np.int64)] = True
        if chosen.all():
            return self
        of_ids = np.repeat(chosen, np.maximum(self.counts, 0))
        return KeptTokens(self.counts[chosen], self.ids[of_ids], self.bits[chosen[self.counts == BITS]])

    def split(self, size: int) -> list["KeptTokens"]:
        """Cuts into pieces of `size` sets, the last one maybe shorter; at least one piece."""
        starts = range(0, max(len(self), 1), size)
        id_ends = np.concatenate([[0], np.maximum(self.counts, 0).cumsum()])
        bit_ends = np.concatenate([[0], (self.counts == BITS).cumsum()])
        pieces = []
        for start in starts:
            end = min(start + size, len(self))
            ids, bits = slice(id_ends[start], id_ends[end]), slice(bit_ends[start], bit_ends[end])
            pieces.append(KeptTokens(self.counts[start:end], self.ids[ids], self.bits[bits]))
        return pieces

    def padded(self, length: int) -> "KeptTokens":
        """Appends whole vocabularies up to `length` sets."""
        return KeptTokens(np.pad(self.counts, (0, length - len(self))), self.ids, self.bits)

    def cut(self, vocab_size: int, device: torch.device) -> Tensor:
        """Returns which ids are not in each set, bool `(K, vocab_size)`, without waiting for the device."""
        numbers = np.arange(len(self), dtype=np.int64)
        flat = np.repeat(numbers * vocab_size, np.maximum(self.counts, 0)) + self.ids
        is_whole = to_device(torch.from_numpy(self.counts == WHOLE), device)
        cut = (~is_whole)[:, None].repeat(1, vocab_size)
        cut.view(-1).index_fill_(0, to_device(torch.from_numpy(flat), device), False)
        if len(self.bits):
            rows = to_device(torch.from_numpy(numbers[self.counts == BITS]), device)
            bits = to_device(torch.from_numpy(self.bits), device)
            cut.index_copy_(0, rows, ~_unpacked(bits, vocab_size))
        return cut

    def state(self) -> dict[str, Tensor]:
        """Tensors for a checkpoint; [`KeptTokens.from_state`] reads them."""
        return {name: torch.from_numpy(np.array(values)) for name, values in vars(self).items()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "KeptTokens":
        return cls(**{name: values.numpy() for name, values in state.items()})


def joined(parts: Iterable[KeptTokens]) -> KeptTokens:
    """Puts sets one after the other."""
    parts = list(parts)
    bits = [part.bits for part in parts if len(part.bits)]
    return KeptTokens(
        np.concatenate([np.empty(0, np.int32), *(part.counts for part in parts)]),
        np.concatenate([np.empty(0, np.int32), *(part.ids for part in parts)]),
        np.concatenate(bits) if bits else np.empty((0, 0), np.uint8),
    )


def _unpacked(bits: Tensor, vocab_size: int) -> Tensor:
    """uint8 `(rows, bytes)` -> bool `(rows, vocab_size)`."""
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    each = bits[:, :, None].bitwise_right_shift(shifts).bitwise_and_(1).flatten(1)[:, :vocab_size].bool()
    return torch.nn.functional.pad(each, (0, vocab_size - each.shape[1]))


def packed(kept: Tensor) -> Tensor:
    """bool `(rows, vocab)` -> uint8 `(rows, bytes)`, as in [`KeptTokens`]."""
    kept = torch.nn.functional.pad(kept, (0, -kept.shape[1] % 8)).to(torch.uint8)
    weights = 2 ** torch.arange(8, dtype=torch.uint8, device=kept.device)
    return (kept.unflatten(1, (-1, 8)) * weights).sum(dim=2, dtype=torch.uint8)
