# SPDX-License-Identifier: Apache-2.0
"""The general decoder: any causal LM of transformers, with its key/value cache."""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache

from ...forward.introspection import cache_argument, forward_arguments, unwrap
from .scheduler import Decoder


class CacheDecoder(Decoder):
    """Decodes with the model's own forward.

    A prompt is prefilled once, and its cache is copied to the rows of its group. Prompts of different lengths are
    padded on the left.

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

    def prefill(self, prompt_ids: Sequence[Sequence[int]]) -> Tensor:
        self.first_group = self.num_groups
        self.num_groups += len(prompt_ids)
        self.cache = DynamicCache(config=unwrap(self.model).config)
        longest = max(len(ids) for ids in prompt_ids)
        # The ids of padding are never attended to; 0 is in every vocabulary.
        padded = [[0] * (longest - len(ids)) + list(ids) for ids in prompt_ids]
        mask = [[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompt_ids]
        self.mask = torch.tensor(mask, device=self.device)
        positions = (self.mask.cumsum(dim=1) - 1).clamp(min=0)
        logits = self._decode(torch.tensor(padded, device=self.device), self.mask, positions, self.cache)
        self.next_position = self.mask.sum(dim=1, keepdim=True)
        return logits

    def start_rows(self, groups: Sequence[int]) -> None:
        self.reorder([group - self.first_group for group in groups])

    def reorder(self, rows: Sequence[int]) -> None:
        if len(rows) == 0:
            return  # the next prefill starts a new cache
        rows = torch.tensor(rows, device=self.device)
        self.cache.batch_select_indices(rows)
        self.mask = self.mask[rows]
        self.next_position = self.next_position[rows]

    def step(self, token_ids: Tensor) -> Tensor:
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(token_ids), 1)], dim=1)
        logits = self._decode(token_ids.unsqueeze(1), self.mask, self.next_position, self.cache)
        self.next_position = self.next_position + 1
        return logits

    def _decode(self, input_ids: Tensor, mask: Tensor, position_ids: Tensor, cache: Cache) -> Tensor:
        inputs = {"position_ids": position_ids, "logits_to_keep": 1}
        inputs = {name: value for name, value in inputs.items() if name in self.accepted}
        inputs[self.cache_name] = cache
        autocast = torch.autocast(self.device.type, self.autocast_dtype) if self.autocast_dtype else nullcontext()
        with autocast:
            outputs = self.model(input_ids=input_ids, attention_mask=mask, use_cache=True, **inputs)
        return outputs.logits[:, -1]
