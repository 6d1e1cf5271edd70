# SPDX-License-Identifier: Apache-2.0
"""The general decoder: any causal LM of transformers, with its key/value cache."""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from transformers import Cache

from ...forward.introspection import cache_argument, forward_arguments
from ...forward.on_device import on_device
from .caches import cache_of, new_cache, select_rows
from .decoder import Decoder
from .parked_cache import CachedRows, join

MAX_HOLES = 32  # columns that no row needs, before the cache is copied without them


class CacheDecoder(Decoder):
    """Decodes with the model's own forward.

    A prompt is prefilled once, and its cache is copied to the rows of its group. Prompts of different lengths are
    padded on the left; a row that is put aside has no padding.

    Args:
        autocast_dtype (`torch.dtype`, *optional*): Compute under autocast with this dtype.
    """

    can_refill = False

    def __init__(self, model: nn.Module, autocast_dtype: torch.dtype | None = None):
        self.model = model
        self.autocast_dtype = autocast_dtype
        self.accepted = forward_arguments(model)
        self.cache_name = cache_argument(model)
        self.device = next(model.parameters()).device
        self.num_groups = 0
        self.cache: Cache | None = None
        self.mask: Tensor | None = None  # unset while there are no rows

    def prefill(self, prompt_ids: Sequence[Sequence[int]]) -> Tensor:
        self.first_group = self.num_groups
        self.num_groups += len(prompt_ids)
        self.cache = new_cache(self.model)
        longest = max(len(ids) for ids in prompt_ids)
        # The ids of padding are never attended to; 0 is in every vocabulary.
        padded = [[0] * (longest - len(ids)) + list(ids) for ids in prompt_ids]
        mask = [[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompt_ids]
        self.mask = on_device(mask, self.device)
        positions = (self.mask.cumsum(dim=1) - 1).clamp(min=0)
        logits = self._decode(on_device(padded, self.device), self.mask, positions, self.cache)
        self.next_position = self.mask.sum(dim=1, keepdim=True)
        return logits

    def start_rows(self, groups: Sequence[int]) -> None:
        self.reorder([group - self.first_group for group in groups])

    def reorder(self, rows: Sequence[int]) -> None:
        if len(rows) == 0:
            self.cache = self.mask = None  # the next prefill starts a new cache
            return
        rows = on_device(rows, self.device)
        select_rows(self.cache, rows)
        self.mask = self.mask[rows]
        self.next_position = self.next_position[rows]

    def step(self, token_ids: Tensor) -> Tensor:
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(token_ids), 1)], dim=1)
        logits = self._decode(token_ids.unsqueeze(1), self.mask, self.next_position, self.cache)
        self.next_position = self.next_position + 1
        return logits

    def append(self, token_ids: Sequence[Sequence[int]]) -> Tensor:
        counts = on_device([[len(ids)] for ids in token_ids], self.device)
        longest = max(len(ids) for ids in token_ids)
        padded = on_device([list(ids) + [0] * (longest - len(ids)) for ids in token_ids], self.device)
        places = [row * longest + place for row, ids in enumerate(token_ids) for place in range(len(ids))]
        ahead = torch.arange(longest, device=self.device)
        is_token = ahead < counts
        self.mask = torch.cat([self.mask, is_token.long()], dim=1)
        positions = self.next_position + torch.minimum(ahead, counts - 1)  # those of padding exist, too
        logits = self._decode(padded, self.mask, positions, self.cache, longest)
        self.next_position = self.next_position + counts
        return logits.flatten(0, 1)[on_device(places, self.device)]

    def cut(self, counts: Sequence[int]) -> None:
        self.next_position = self.next_position - on_device(counts, self.device).unsqueeze(1)
        self.mask = self.mask * (self.mask.cumsum(dim=1) <= self.next_position)
        if self.mask.shape[1] > int(self.next_position.max()) + MAX_HOLES:
            self._take_rows(self._cached_rows().compact())

    def park(self, rows: Sequence[int], excess: Sequence[int]) -> list[CachedRows]:
        running = self._cached_rows()
        return [running.row(row, count) for row, count in zip(rows, excess, strict=True)]

    def extend(self, parked: Sequence[CachedRows], token_ids: Sequence[Sequence[int]]) -> Tensor:
        running = None if self.mask is None else self._cached_rows().compact()
        before = join(parked)
        cache = before.to_cache(self.model)
        longest = max(len(ids) for ids in token_ids)
        padded = on_device([[0] * (longest - len(ids)) + list(ids) for ids in token_ids], self.device)
        run_mask = on_device([[0] * (longest - len(ids)) + [1] * len(ids) for ids in token_ids], self.device)
        mask = torch.cat([before.mask, run_mask], dim=1)
        positions = (mask.cumsum(dim=1) - 1)[:, -longest:]
        logits = self._decode(padded, mask, positions, cache)
        extended = CachedRows.of(cache, mask).compact()
        self._take_rows(extended if running is None else join([running, extended]))
        return logits

    def _cached_rows(self) -> CachedRows:
        return CachedRows.of(self.cache, self.mask)

    def _take_rows(self, rows: CachedRows) -> None:
        """Makes these the rows of the batch."""
        self.cache, self.mask = rows.to_cache(self.model), rows.mask
        self.next_position = self.mask.sum(dim=1, keepdim=True)

    def _decode(
        self,
        input_ids: Tensor,
        mask: Tensor | None,
        position_ids: Tensor,
        cache: Cache | None,
        last: int | None = None,
    ) -> Tensor:
        """Returns logits: after the last token of each row, or after the `last` ones."""
        inputs = {"position_ids": position_ids, "logits_to_keep": last or 1}
        inputs = {name: value for name, value in inputs.items() if name in self.accepted}
        if cache is not None:
            inputs[self.cache_name] = cache
        autocast = torch.autocast(self.device.type, self.autocast_dtype) if self.autocast_dtype else nullcontext()
        with autocast:
            outputs = self.model(input_ids=input_ids, attention_mask=mask, use_cache=True, **inputs)
        if cache is None:
            self.cache = cache_of(outputs, self.model)
        return outputs.logits[:, -1] if last is None else outputs.logits[:, -last:]
