# SPDX-License-Identifier: Apache-2.0
"""Preallocated keys and values of sequences that are added, grow and are removed."""

from collections.abc import Sequence

import torch

from ...forward.on_device import on_device

FIRST_LENGTH = 64


class KeyValues:
    """Keys and values of all layers; each sequence has a row in every layer, filled from the left.

    Rows and length grow by doubling, and beyond `max_rows` and `max_length` only as far as asked. Memory starts as
    zeros and always holds finite numbers, so that masked slots (their probability is 0) cannot turn a product into
    NaN.
    """

    def __init__(self, num_layers: int, num_heads: int, head_dim: int, *, max_rows: int, max_length: int, device):
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.max_rows = max_rows
        self.max_length = max_length
        self.memory = torch.zeros(num_layers, 2, 0, num_heads, 0, head_dim, device=device)

    def reserve(self, rows: int, length: int) -> None:
        """Makes room for this many rows of this length."""
        has_rows, has_length = self.memory.shape[2], self.memory.shape[4]
        if rows <= has_rows and length <= has_length:
            return
        if rows > has_rows:
            rows = max(rows, min(2 * has_rows, self.max_rows))
        if length > has_length:
            length = max(length, min(max(2 * has_length, FIRST_LENGTH), self.max_length))
        old = self.memory
        shape = (*old.shape[:2], max(rows, has_rows), self.num_heads, max(length, has_length), old.shape[-1])
        self.memory = old.new_zeros(shape)
        self.memory[:, :, :has_rows, :, :has_length] = old

    def move(self, to: Sequence[int], source: Sequence[int], length: int) -> None:
        """Copies the first `length` slots of some rows onto others."""
        if len(to) > 0:
            used = self.memory[:, :, :, :, :length]
            to, source = (on_device(rows, self.memory.device) for rows in (to, source))
            used[:, :, to] = used[:, :, source]
