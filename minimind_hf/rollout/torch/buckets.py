# SPDX-License-Identifier: Apache-2.0
"""Places for the steps of a batch: tensors of a few sizes at fixed addresses, which are kept over rollouts.

A bucket has room for so many rows (a power of 2) and so many columns of keys and values. A batch begins in the
smallest that holds it and moves on when rows leave or its columns are full. All buckets lie in the same memory, since
a batch is in one of them at a time. What is captured over a bucket stays valid until that memory or the weights move.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import StaticCache

from ...forward.introspection import unwrap
from .cast_copy import CastCopy, adapter_state
from .graphs import CudaGraphs

FIRST_COLUMNS = 128  # doubled until all fit, but
COLUMNS_STEP = 256  # no longer than the longest completion needs, up to this multiple
# Memory for keys and values that is more than this share of a device's is given back between rollouts.
KEPT_SHARE = 1 / 8


def rows_for(count: int) -> int:
    """Rows of the bucket for so many."""
    return 1 << (count - 1).bit_length()


def columns_for(used: int, longest: int) -> int:
    """Columns of the bucket for so many, in a batch that ends with `longest` at most."""
    columns = FIRST_COLUMNS
    while columns < used:
        columns *= 2
    return min(columns, -(-longest // COLUMNS_STEP) * COLUMNS_STEP)


class Bucket:
    """Tensors at fixed addresses.

    Attributes:
        token_ids (`Tensor` of shape `(rows, 1)`), positions (`Tensor` of shape `(rows, 1)`): The next input.
        counters (`Tensor` of shape `(rows,)`): Of the next noise, see [`~noise.Noise`].
        bias (`Tensor` of shape `(rows, 1, 1, columns)`): Added to the scores: 0 for what a row attends to.
        cache (`StaticCache`): Keys and values.
        replays (`dict`): What replays a captured step, by how it draws; unset before the second step.
    """

    def __init__(self, config: Any, rows: int, columns: int, layers: Sequence[tuple[Tensor, Tensor]], like: Tensor):
        device = like.device
        self.rows, self.columns = rows, columns
        self.token_ids, self.positions = (torch.zeros(rows, 1, dtype=torch.long, device=device) for _ in range(2))
        self.counters = torch.zeros(rows, dtype=torch.long, device=device)
        self.bias = torch.zeros(rows, 1, 1, columns, dtype=like.dtype, device=device)
        self.cache = StaticCache(config, columns)
        for layer, (keys, values) in zip(self.cache.layers, layers, strict=True):
            layer.lazy_initialization(keys[:1, :, :1], values[:1, :, :1])
            layer.keys, layer.values, layer.batch_size = keys, values, rows
        self.replays: dict[tuple, Callable[[], Any] | None] = {}

    @property
    def layers(self) -> list[tuple[Tensor, Tensor]]:
        return [(layer.keys, layer.values) for layer in self.cache.layers]

    def fill(self, layers: Iterable[tuple[Tensor, Tensor]], bias: Tensor, positions: Tensor) -> None:
        """Begins with rows of another place.

        Args:
            layers (`Iterable`): Keys and values, `(rows, heads, used columns, head_dim)`.
            bias (`Tensor` of shape `(rows, 1, 1, used columns)`), positions (`Tensor` of shape `(rows, 1)`)
        """
        used = bias.shape[3]
        for layer, (keys, values) in zip(self.cache.layers, layers, strict=True):
            layer.keys[:, :, :used].copy_(keys)
            layer.values[:, :, :used].copy_(values)
            layer.cumulative_length.fill_(used)
        self.bias.fill_(torch.finfo(self.bias.dtype).min)
        self.bias[..., :used].copy_(bias)
        self.positions.copy_(positions)
        for tensor in (self.token_ids, self.counters):  # rows that only fill the bucket do the same in every rollout
            tensor.zero_()

    def move(self, to: Tensor, source: Tensor, used: int) -> None:
        """Copies rows onto others."""
        for keys, values in self.layers:
            for tensor in (keys[:, :, :used], values[:, :, :used]):
                tensor.index_copy_(0, to, tensor.index_select(0, source))
        for tensor in (self.bias, self.positions):
            tensor.index_copy_(0, to, tensor.index_select(0, source))


class Buckets:
    """The buckets of one model, the memory that they share, and what was captured over them.

    Args:
        graphs ([`CudaGraphs`], *optional*): Captures steps. Unset: every step is done again.
    """

    def __init__(self, graphs: CudaGraphs | None = None):
        self.graphs = graphs
        self.copy: CastCopy | None = None
        self._addresses: tuple = ()
        self._memory: list[tuple[Tensor, Tensor]] = []
        self._buckets: dict[tuple[int, int], Bucket] = {}

    def module_for(self, model: nn.Module, dtype: torch.dtype | None) -> nn.Module:
        """The module to decode with: the model, or its copy in another dtype, with the newest weights.

        What was captured over weights at other addresses is forgotten.
        """
        own = next(model.parameters()).dtype
        if dtype in (None, own):
            self.copy, module = None, model
        else:
            if self.copy is None or not self.copy.fits(model, dtype):
                self.copy = CastCopy(model, dtype)
            else:
                self.copy.follow(model)
            module = self.copy.module
        addresses = addresses_of(module)
        if addresses != self._addresses:
            self.release()
        self._addresses = addresses
        return module

    def bucket(self, model: nn.Module, rows: int, columns: int, like: Sequence[tuple[Tensor, Tensor]]) -> Bucket:
        """Returns the bucket of a size.

        Args:
            like (`Sequence`): Keys and values of each layer, for their heads and dtype.
        """
        if (rows, columns) not in self._buckets:
            self.reserve(like, rows, columns)
            layers = [
                tuple(
                    _shaped(flat, (rows, each.shape[1], columns, each.shape[3]))
                    for flat, each in zip(*pair, strict=True)
                )
                for pair in zip(self._memory, like, strict=True)
            ]
            self._buckets[rows, columns] = Bucket(unwrap(model).config, rows, columns, layers, like[0][0])
        return self._buckets[rows, columns]

    def reserve(self, like: Sequence[tuple[Tensor, Tensor]], rows: int, columns: int) -> None:
        """Makes room for a bucket of this size. If the memory has to move, all buckets are forgotten."""
        sizes = [[rows * columns * each.shape[1] * each.shape[3] for each in pair] for pair in like]
        has = [[flat.numel() for flat in pair] for pair in self._memory]
        dtype = self._memory[0][0].dtype if self._memory else None
        if dtype == like[0][0].dtype and _cover(has, sizes):
            return
        self.release()
        self._memory = [
            tuple(torch.zeros(size, dtype=each.dtype, device=each.device) for size, each in zip(*pair, strict=True))
            for pair in zip(sizes, like, strict=True)
        ]

    def settle(self, device: torch.device) -> None:
        """After a rollout: gives memory back that the update of the weights may need."""
        if device.type != "cuda":
            return
        held = sum(flat.nbytes for pair in self._memory for flat in pair)
        if held > KEPT_SHARE * torch.cuda.get_device_properties(device).total_memory:
            self.release()

    def release(self) -> None:
        """Forgets memory, buckets and graphs."""
        self._buckets, self._memory = {}, []


def _cover(has: list[list[int]], sizes: list[list[int]]) -> bool:
    return all(
        one >= other for mine, others in zip(has, sizes, strict=True) for one, other in zip(mine, others, strict=True)
    )


def _shaped(flat: Tensor, shape: tuple[int, ...]) -> Tensor:
    return flat[: torch.Size(shape).numel()].view(shape)


def addresses_of(module: nn.Module) -> tuple:
    """Where all weights and buffers of a module are, and which of its adapters compute."""
    tensors = [*module.parameters(), *module.buffers()]
    return tuple(tensor.data_ptr() for tensor in tensors), adapter_state(module)
