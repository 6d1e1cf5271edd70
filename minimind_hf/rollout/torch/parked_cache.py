# SPDX-License-Identifier: Apache-2.0
"""Rows of a general cache that are taken out, put back and joined: keys and values of all layers, and a mask."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Cache

from .caches import new_cache


@dataclass
class CachedRows:
    """The cache of some rows, padded anywhere.

    Attributes:
        layers (`list[tuple[Tensor, Tensor]]`): Keys and values, of shape `(rows, heads, columns, head_dim)`.
        mask (`Tensor` of shape `(rows, columns)`): 1 for tokens, 0 for padding.
    """

    layers: list[tuple[Tensor, Tensor]]
    mask: Tensor

    @classmethod
    def of(cls, cache: Cache, mask: Tensor) -> "CachedRows":
        return cls([(layer.keys, layer.values) for layer in cache.layers], mask)

    def row(self, number: int, excess: int) -> "CachedRows":
        """Copies a row without its padding and its last `excess` tokens."""
        columns = self.mask[number].nonzero().squeeze(1)
        columns = columns[: len(columns) - excess]
        layers = [tuple(part[number].index_select(1, columns).unsqueeze(0) for part in layer) for layer in self.layers]
        return CachedRows(layers, self.mask.new_ones(1, len(columns)))

    def compact(self) -> "CachedRows":
        """Moves all padding to the left, and drops what all rows have of it."""
        longest = int(self.mask.sum(dim=1).max())
        columns = self.mask.argsort(dim=1, stable=True)[:, -longest:]
        index = columns[:, None, :, None]
        layers = [
            tuple(part.gather(2, index.expand(-1, part.shape[1], -1, part.shape[3])) for part in layer)
            for layer in self.layers
        ]
        return CachedRows(layers, self.mask.gather(1, columns))

    def widen(self, columns: int) -> "CachedRows":
        """Pads on the left to this many columns."""
        missing = columns - self.mask.shape[1]
        layers = [tuple(F.pad(part, (0, 0, missing, 0)) for part in layer) for layer in self.layers]
        return CachedRows(layers, F.pad(self.mask, (missing, 0)))

    def to_cache(self, model: nn.Module) -> Cache:
        cache = new_cache(model)
        for layer, (keys, values) in zip(cache.layers, self.layers, strict=True):
            layer.update(keys, values)
        return cache


def join(parts: Sequence[CachedRows]) -> CachedRows:
    """Returns the rows of all parts, padded on the left."""
    columns = max(part.mask.shape[1] for part in parts)
    parts = [part.widen(columns) for part in parts]
    layers = [
        tuple(torch.cat(tensors) for tensors in zip(*layer, strict=True))
        for layer in zip(*(part.layers for part in parts), strict=True)
    ]
    return CachedRows(layers, torch.cat([part.mask for part in parts]))
