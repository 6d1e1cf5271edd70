# SPDX-License-Identifier: Apache-2.0
"""The decoder of models with recurrences (Mamba, hybrids): prompts of one length at a time, without padding.

Padding on the left would go through the recurrence: not every model keeps it out of its states, and not every model
takes a mask that is longer than its input. So each length has a cache, and a step is one pass per length.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...forward.on_device import on_device
from .cache_decoder import CacheDecoder
from .caches import ModuleStates, new_cache, select_rows
from .decoder import Decoder


class RecurrentDecoder(Decoder):
    """Decodes with the model's own forward.

    Args:
        model (`nn.Module`): A causal LM.
        autocast_dtype (`torch.dtype`, *optional*): Compute under autocast with this dtype.
    """

    can_refill = False

    def __init__(self, model: nn.Module, autocast_dtype: torch.dtype | None = None):
        self.model, self.autocast_dtype = model, autocast_dtype
        self.device = next(model.parameters()).device
        self.num_groups = self.first_group = 0
        self.parts: list[_EqualLengths] = []

    def prefill(self, prompt_ids: Sequence[Sequence[int]]) -> Tensor:
        self.first_group = self.num_groups
        self.num_groups += len(prompt_ids)
        self.parts, logits = [], []
        for length in sorted({len(ids) for ids in prompt_ids}):
            part = _EqualLengths(self.model, self.autocast_dtype)
            part.members = [number for number, ids in enumerate(prompt_ids) if len(ids) == length]
            logits.append(part.prefill([prompt_ids[number] for number in part.members]))
            self.parts.append(part)
        return self._in_order(logits)

    def start_rows(self, groups: Sequence[int]) -> None:
        self.reorder([group - self.first_group for group in groups])

    def step(self, token_ids: Tensor) -> Tensor:
        return self._in_order([part.step(token_ids[part.index]) for part in self.parts])

    def reorder(self, rows: Sequence[int]) -> None:
        for part in self.parts:
            places = {row: place for place, row in enumerate(part.members)}
            part.members = [number for number, row in enumerate(rows) if row in places]
            part.reorder([places[row] for row in rows if row in places])
        self.parts = [part for part in self.parts if part.members]

    def _in_order(self, logits: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(logits))[torch.cat([part.index for part in self.parts]).argsort()]


class _EqualLengths(CacheDecoder):
    """Rows whose prompts have one length.

    Attributes:
        members (`list[int]`): Their numbers among all rows.
    """

    members: list[int]

    @property
    def index(self) -> Tensor:
        return on_device(self.members, self.device)

    def prefill(self, prompt_ids: Sequence[Sequence[int]]) -> Tensor:
        self.cache, self.held = new_cache(self.model), ModuleStates(self.model)
        ids = on_device(prompt_ids, self.device)
        positions = torch.arange(ids.shape[1], device=self.device).expand_as(ids)
        self.next_position = torch.full((len(ids), 1), ids.shape[1], device=self.device)
        return self._decode(ids, None, positions, self.cache)

    def reorder(self, rows: Sequence[int]) -> None:
        if len(rows) == 0:
            return  # the part is dropped
        rows = on_device(rows, self.device)
        select_rows(self.cache, rows)
        self.held.select_rows(rows)
        self.next_position = self.next_position[rows]

    def step(self, token_ids: Tensor) -> Tensor:
        logits = self._decode(token_ids.unsqueeze(1), None, self.next_position, self.cache)
        self.next_position = self.next_position + 1
        return logits

    def _decode(self, *inputs) -> Tensor:
        self.held.put()
        logits = super()._decode(*inputs)
        self.held.take()
        return logits
