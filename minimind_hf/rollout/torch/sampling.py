# SPDX-License-Identifier: Apache-2.0
"""Draws the next token of every row, with its log-probability under the sampling distribution."""

import torch
from torch import Tensor

from ..samples import SamplingParams


def sample(logits: Tensor, sampling: SamplingParams, uniforms: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Draws from `softmax(logits / temperature)` by inverting its cumulative sum.

    It needs one uniform number per row; `torch.multinomial` draws one exponential number per entry of the vocabulary,
    which takes longer than a small model's forward. The sum is in float64, so that tokens of any float32 probability
    are drawn as often as they should be, and tokens of probability 0 never.

    Args:
        logits (`Tensor` of shape `(rows, vocab)`): Of any floating dtype; computed in float32.
        uniforms (`Tensor` of shape `(rows,)`, *optional*): float64, at least 0 and below 1. Not needed if greedy.

    Returns:
        `tuple[Tensor, Tensor]`: Token ids and float32 log-probabilities, both of shape `(rows,)`.
    """
    scaled = logits.float() / sampling.temperature
    probabilities = scaled.softmax(dim=-1)
    if sampling.greedy:
        chosen = probabilities.argmax(dim=-1, keepdim=True)
    else:
        cumulative = probabilities.cumsum(dim=-1, dtype=torch.float64)
        target = uniforms.unsqueeze(1) * cumulative[:, -1:]
        chosen = torch.searchsorted(cumulative, target, right=True).clamp_(max=logits.shape[-1] - 1)
    return chosen.squeeze(1), probabilities.gather(1, chosen).log_().squeeze(1)
