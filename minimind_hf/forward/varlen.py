# SPDX-License-Identifier: Apache-2.0
"""The layout of FlashAttention: completions one after the other in a row without padding, each after its own prompt.

FlashAttention knows no layout in which completions share a prompt, but it takes sequences of any lengths in one row,
whose ends it is told here (`cu_seq_lens`), so that no length has to be read back from the device. It is the layout of
models that were loaded with `attn_implementation="flash_attention_2"`. Any other attention of transformers finds the
sequences by their position ids, which makes the layout testable without a device.
"""

from itertools import accumulate
from typing import Any

import torch
from torch import nn
from transformers.utils.generic import is_flash_attention_requested

from .introspection import unwrap
from .on_device import on_device
from .shared_prompt import PackedBatch, pack, pack_rows
from .token_batch import TokenBatch


class SequenceBatch(PackedBatch):
    """A [`PackedBatch`] whose groups are one prompt and one completion each."""

    def attention_inputs(self) -> dict[str, Any]:
        lengths = [group.prompt_length + group.completions_length for group in self.layout.groups]
        ends = on_device([*accumulate(lengths, initial=0)], self.input_ids.device, torch.int32)
        return {
            "attention_mask": None,
            **dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), ends),
            **dict.fromkeys(("max_length_q", "max_length_k"), max(lengths)),
        }


def packed_for(layout: str, batch: TokenBatch, keep_last_tokens: bool = False) -> PackedBatch:
    """Packs a batch for one of the layouts that are a single row, `"shared_prompt"` or `"varlen"`."""
    return (pack_sequences if layout == "varlen" else pack)(batch, keep_last_tokens)


def pack_sequences(batch: TokenBatch, keep_last_tokens: bool = False) -> SequenceBatch:
    """Packs a batch without padding, with a prompt for every completion; see [`pack`]."""
    packed = pack_rows(batch, [[row] for row in range(len(batch))], keep_last_tokens)
    return SequenceBatch(**vars(packed))


def takes_varlen(model: nn.Module) -> bool:
    """Whether a model was loaded with FlashAttention, of any version."""
    return is_flash_attention_requested(unwrap(model).config.get_text_config())
