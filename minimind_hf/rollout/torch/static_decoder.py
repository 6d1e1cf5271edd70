# SPDX-License-Identifier: Apache-2.0
"""The general decoder with steps of constant shape, which a GPU replays as one CUDA graph.

A step of a small model on a GPU is limited by starting its hundreds of kernels; a graph starts them all at once. For
this nothing may move or grow: keys and values are in transformers' static cache, which is as long as the longest
completion can be, and rows that have ended leave the batch when the rest fits into a smaller bucket (a power of 2).

On a CPU nothing is captured, and it equals the other decoders. The capture itself is unverified, so it is off by
default.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from transformers import StaticCache
from transformers.cache_utils import StaticLayer

from ...forward.introspection import unwrap
from ...forward.shared_prompt import ATTENTION_NAME, FLEX_NAME
from .cache_decoder import CacheDecoder
from .decoder import Decoder
from .parked_cache import CachedRows

# Attention that takes a mask with a column for every slot; the last is sdpa outside the training forward.
MASKED_ATTENTION = ("sdpa", "eager", ATTENTION_NAME, FLEX_NAME)


def why_not_static(model: nn.Module, max_length: int) -> str | None:
    """Returns why the model's steps cannot be captured, or `None`."""
    inner = unwrap(model)
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
        captures (`bool`): Capture the steps of each bucket as a CUDA graph and replay it.
    """

    def __init__(
        self,
        model: nn.Module,
        max_completion_length: int,
        autocast_dtype: torch.dtype | None = None,
        captures: bool = True,
    ):
        super().__init__(model, autocast_dtype)
        self.max_completion_length = max_completion_length
        self.captures = captures
        self.dtype = autocast_dtype or next(model.parameters()).dtype
        self.num_rows = 0

    def start_rows(self, groups: Sequence[int]) -> None:
        self._fill([group - self.first_group for group in groups])

    def _fill(self, rows: Sequence[int]) -> None:
        """Begins a batch whose row `i` is row `rows[i]` of the growing cache."""
        prompts = self.cache.layers
        prompt_length = self.mask.shape[1]
        self.num_rows = len(rows)
        index = self._bucket(rows)
        bias = torch.zeros(self.mask.shape, dtype=self.dtype, device=self.device)
        bias.masked_fill_(self.mask == 0, torch.finfo(self.dtype).min)
        hidden = bias.new_full((len(index), self.max_completion_length), torch.finfo(self.dtype).min)
        self.bias = torch.cat([bias[index], hidden], dim=1)[:, None, None]
        self.positions = self.next_position[index]
        self.token_ids = torch.zeros_like(self.positions)
        self.cache = StaticCache(unwrap(self.model).config, prompt_length + self.max_completion_length)
        for layer, prompt in zip(self.cache.layers, prompts, strict=True):
            layer.update(prompt.keys[index], prompt.values[index])
        self._begin_bucket()

    def reorder(self, rows: Sequence[int]) -> None:
        self.num_rows = len(rows)
        if self.num_rows == 0:
            self.cache = self.mask = None
            return
        index = self._bucket(rows)
        tensors = [self.bias, self.positions]
        tensors += [tensor for layer in self.cache.layers for tensor in (layer.keys, layer.values)]
        if len(index) == len(self.positions):
            for tensor in tensors:  # their addresses are part of the graph
                tensor.copy_(tensor[index])
            return
        self.bias, self.positions = self.bias[index], self.positions[index]
        self.token_ids = torch.zeros_like(self.positions)
        for layer in self.cache.layers:
            layer.keys, layer.values = layer.keys[index], layer.values[index]
        self._begin_bucket()

    def step(self, token_ids: Tensor) -> Tensor:
        self.token_ids[: self.num_rows, 0] = token_ids
        self.logits = self._next_step()
        return self.logits[: self.num_rows].clone()  # the next replay overwrites it

    append, cut = Decoder.append, Decoder.cut  # steps of constant shape have one token of each row

    def _cached_rows(self) -> CachedRows:
        used = int(self.cache.layers[0].cumulative_length)
        rows, columns = slice(self.num_rows), slice(used)
        layers = [(layer.keys[rows, :, columns], layer.values[rows, :, columns]) for layer in self.cache.layers]
        return CachedRows(layers, (self.bias[rows, 0, 0, columns] == 0).long())

    def _take_rows(self, rows: CachedRows) -> None:
        super()._take_rows(rows)
        self._fill(range(len(rows.mask)))

    def _bucket(self, rows: Sequence[int]) -> Tensor:
        """The rows, and copies of the first that fill the bucket."""
        size = 1 << (len(rows) - 1).bit_length()
        return torch.tensor([*rows, *[rows[0]] * (size - len(rows))], device=self.device)

    def _begin_bucket(self) -> None:
        # The first step of a bucket does what must not happen during a capture; the second is captured.
        self._next_step = self._warm_up if self.captures else self._run

    def _run(self) -> Tensor:
        slot = self.cache.layers[0].cumulative_length
        self.bias.index_fill_(3, slot.view(1), 0.0)
        logits = self._decode(self.token_ids, self.bias, self.positions, self.cache)
        self.positions.add_(1)
        return logits

    def _warm_up(self) -> Tensor:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            logits = self._run()
        torch.cuda.current_stream().wait_stream(stream)
        self._next_step = self._capture
        return logits

    def _capture(self) -> Tensor:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = self._run()
        self._next_step = _replay(graph, logits)
        return self._next_step()


def _replay(graph: torch.cuda.CUDAGraph, logits: Tensor) -> Callable[[], Tensor]:
    def run() -> Tensor:
        graph.replay()
        return logits

    return run
