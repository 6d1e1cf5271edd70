# SPDX-License-Identifier: Apache-2.0
"""The general decoder with steps of constant shape, which a GPU replays as one CUDA graph.

A step of a small model on a GPU is limited by starting its hundreds of kernels; a graph starts them all at once. For
this nothing may move or grow: the batch is in a bucket (see `buckets`), which is longer than its tokens and may have
more rows. A step includes drawing the next tokens, with noise that is computed on the device, so a whole block of
tokens needs nothing of the host.

On a CPU nothing is captured, and it equals the other decoders. Tests replay its steps there from a recording of their
operations; on a GPU a run compares it with the model's own forward first (see `proof`).
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import StaticCache
from transformers.cache_utils import StaticLayer

from ...forward.introspection import quantisation, unwrap
from ...forward.on_device import on_device
from ...forward.shared_prompt import ATTENTION_NAME, FLEX_NAME
from .buckets import Bucket, Buckets, columns_for, rows_for
from .cache_decoder import CacheDecoder
from .decoder import Decoder
from .draws import Drawer, Drawn
from .noise import advance, uniforms
from .parked_cache import CachedRows

# Attention that takes a mask with a column for every slot; the last is sdpa outside the training forward.
MASKED_ATTENTION = ("sdpa", "eager", ATTENTION_NAME, FLEX_NAME)


def why_not_static(model: nn.Module, max_length: int) -> str | None:
    """Returns why the model's steps cannot be captured, or `None`."""
    inner = unwrap(model)
    if method := quantisation(model):
        return f"its linear layers are quantised ({method})"
    # The plain mixture of experts loops over the chosen experts.
    loops = inner.config._experts_implementation == "eager" and any(
        name.endswith(".experts") for name, _ in inner.named_modules()
    )
    if loops or not inner._can_compile_fullgraph:
        return f"{type(inner).__name__} decides on the host what to compute, which a graph cannot capture"
    if inner.config._attn_implementation not in MASKED_ATTENTION:
        return f"its attention is {inner.config._attn_implementation!r}; load it with attn_implementation={'sdpa'!r}"
    if not all(type(layer) is StaticLayer for layer in StaticCache(inner.config, max_length).layers):
        return f"{type(inner).__name__} has layers of sliding windows"
    return None


class StaticDecoder(CacheDecoder):
    """Decodes with the model's own forward on a static cache.

    Args:
        max_completion_length (`int`): Most tokens of a row.
        buckets ([`Buckets`], *optional*): Those of earlier rollouts.
    """

    draws = True

    def __init__(self, model: nn.Module, max_completion_length: int, buckets: Buckets | None = None):
        super().__init__(model)
        self.max_completion_length = max_completion_length
        self.buckets = Buckets() if buckets is None else buckets
        self.num_rows = self.used = self.longest = 0
        self.bucket: Bucket | None = None
        self.last_ids: Tensor | None = None  # drawn by the last step, which has put them into their places already

    def start_rows(self, groups: Sequence[int]) -> None:
        self._fill([group - self.first_group for group in groups])

    def _fill(self, rows: Sequence[int]) -> None:
        """Begins a batch whose row `i` is row `rows[i]` of the growing cache."""
        prompts = [(layer.keys, layer.values) for layer in self.cache.layers]
        self.num_rows, self.used = len(rows), self.mask.shape[1]
        self.longest = self.used + self.max_completion_length
        size = rows_for(len(rows))
        self.buckets.reserve(prompts, size, columns_for(self.longest, self.longest))
        dtype = prompts[0][0].dtype
        bias = torch.zeros(self.mask.shape, dtype=dtype, device=self.device)
        bias.masked_fill_(self.mask == 0, torch.finfo(dtype).min)
        self._enter(prompts, bias[:, None, None], self.next_position, [*rows, *[rows[0]] * (size - len(rows))])

    def _enter(
        self, layers: Sequence[tuple[Tensor, Tensor]], bias: Tensor, positions: Tensor, rows: Sequence[int]
    ) -> None:
        """Moves rows from elsewhere into the bucket for as many and their columns."""
        index = on_device(rows, self.device)
        columns = columns_for(self.used + 1, self.longest)
        self.bucket = self.buckets.bucket(self.model, len(rows), columns, layers)
        chosen = ((keys[index, :, : self.used], values[index, :, : self.used]) for keys, values in layers)
        self.bucket.fill(chosen, bias[index, ..., : self.used], positions[index])
        self.cache, self.last_ids = self.bucket.cache, None

    def reorder(self, rows: Sequence[int]) -> None:
        self.num_rows, self.last_ids = len(rows), None
        if self.num_rows == 0:
            self.cache = self.mask = self.bucket = None
            return
        bucket, size = self.bucket, rows_for(len(rows))
        if size < bucket.rows:
            self._enter(bucket.layers, bucket.bias, bucket.positions, [*rows, *[rows[0]] * (size - len(rows))])
            return
        moved = [(to, source) for to, source in enumerate(rows) if to != source]
        if moved:
            to, source = (on_device(places, self.device) for places in zip(*moved, strict=True))
            bucket.move(to, source, self.used)

    def step(self, token_ids: Tensor) -> Tensor:
        self._take(token_ids)
        logits = self._forward(self.bucket)
        self.used += 1
        return logits[: self.num_rows]

    def step_and_draw(self, token_ids: Tensor, draw: Drawer) -> Drawn:
        self._take(token_ids)
        if not draw.sampling.greedy:
            draw.noise.keep_in(self.bucket.counters)
        logits, drawn = self._replayed(self.bucket, draw)
        self.used += 1
        self.logits = logits[: self.num_rows]
        drawn = drawn.first(self.num_rows)  # the next replay overwrites it
        self.last_ids = drawn.token_ids
        return drawn

    def _take(self, token_ids: Tensor) -> None:
        """Puts the next input of all rows into place, in a bucket with a free column."""
        if self.used == self.bucket.columns:
            bucket = self.bucket
            self._enter(bucket.layers, bucket.bias, bucket.positions, range(bucket.rows))
        if token_ids is not self.last_ids:
            self.bucket.token_ids[: self.num_rows, 0] = token_ids
        self.last_ids = None

    def _replayed(self, bucket: Bucket, draw: Drawer) -> tuple[Tensor, Drawn]:
        """Does a step: for the first time, to be captured, or from a graph."""

        def work() -> tuple[Tensor, Drawn]:
            logits = self._forward(bucket)
            drawn = draw.drawn(logits, None if draw.sampling.greedy else uniforms(bucket.counters))
            advance(bucket.counters)
            bucket.token_ids[:, 0] = drawn.token_ids
            return logits, drawn

        graphs = self.buckets.graphs
        if graphs is None:
            return work()
        if draw.how not in bucket.replays:
            bucket.replays[draw.how] = None
            return graphs.warm_up(work)
        if bucket.replays[draw.how] is None:
            bucket.replays[draw.how] = graphs.capture(work)
        return bucket.replays[draw.how]()

    def _forward(self, bucket: Bucket) -> Tensor:
        slot = bucket.cache.layers[0].cumulative_length
        bucket.bias.index_fill_(3, slot.view(1), 0.0)
        logits = self._decode(bucket.token_ids, bucket.bias, bucket.positions, bucket.cache)
        bucket.positions.add_(1)
        return logits

    append, cut = Decoder.append, Decoder.cut  # steps of constant shape have one token of each row

    def _cached_rows(self) -> CachedRows:
        rows, columns = slice(self.num_rows), slice(self.used)
        layers = [(keys[rows, :, columns], values[rows, :, columns]) for keys, values in self.bucket.layers]
        return CachedRows(layers, (self.bucket.bias[rows, 0, 0, columns] == 0).long())

    def _take_rows(self, rows: CachedRows) -> None:
        super()._take_rows(rows)
        self._fill(range(len(rows.mask)))
