# SPDX-License-Identifier: Apache-2.0
"""Draws the next token of every row from a truncated distribution, and says which tokens were kept.

`top_k`, `top_p` and `min_p` apply one after the other to the logits divided by the temperature, as in transformers'
`generate`. Tokens are ranked by logit, equal ones by id, so each filter keeps the first of the ranking, and what is
kept is a function of the row's logits alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...forward.kept_tokens import packed
from ..samples import SamplingParams

_FIRST_LOOK = 256  # on a CPU, the best tokens are looked at first, since the nucleus seldom needs a whole ranking
_ID_BITS = 32


@dataclass
class KeptSets:
    """What was kept in each row, on the device.

    Args:
        counts (`Tensor` of shape `(rows,)`): Tokens in each set.
        ids (`Tensor` of shape `(rows, most)`): int32: the first of each ranking.
        bits (`Tensor` of shape `(rows, bytes)`, *optional*): Sets as bits, see [`KeptTokens`], for those with more
            than `most` tokens; unset if there are none.
    """

    counts: Tensor
    ids: Tensor
    bits: Tensor | None

    def first(self, count: int) -> "KeptSets":
        """A copy of the first rows."""
        return KeptSets(
            *(None if each is None else each[:count].clone() for each in (self.counts, self.ids, self.bits))
        )

    def to_host(self) -> list[np.ndarray]:
        """One array per row: ids, or bits where they are smaller."""
        ids, counts = self.ids.cpu().numpy(), self.counts.tolist()
        bits = None if self.bits is None else self.bits.cpu().numpy()
        return [
            ids[row, :count].copy() if count <= ids.shape[1] else bits[row].copy() for row, count in enumerate(counts)
        ]


def sample_truncated(
    logits: Tensor, sampling: SamplingParams, uniforms: Tensor | None = None
) -> tuple[Tensor, Tensor, KeptSets]:
    """Draws from `softmax(logits / temperature)`, restricted to what `top_k`, `top_p` and `min_p` keep.

    Args:
        logits (`Tensor` of shape `(rows, vocab)`): Of any floating dtype; computed in float32.
        uniforms (`Tensor` of shape `(rows,)`, *optional*): float64, at least 0 and below 1. Not needed if greedy.

    Returns:
        `(token_ids, logprobs, kept)`: Token ids and float32 log-probabilities over the sets, both of shape `(rows,)`,
        and the sets.
    """
    scaled = logits.float() / sampling.temperature
    vocab = scaled.shape[1]
    ranked = min(sampling.top_k or vocab, vocab)
    # Ids take 32 bits each, and a set as bits one for every id of the vocabulary.
    most = min(ranked, -(-vocab // 32))
    if _looks_are_free(scaled) and max(most, _FIRST_LOOK) < ranked and not sampling.top_k:
        return _looked_at(scaled, sampling, uniforms, max(most, _FIRST_LOOK), most)
    return _drawn(scaled, sampling, uniforms, ranked, most)[:3]


def _looks_are_free(logits: Tensor) -> bool:
    return logits.device.type == "cpu"


def _looked_at(scaled: Tensor, sampling: SamplingParams, uniforms: Tensor | None, first: int, most: int) -> tuple:
    """Draws from the first of the ranking, and again from a whole one where these were all kept."""
    token_ids, logprobs, kept, is_whole = _drawn(scaled, sampling, uniforms, first, most)
    again = (~is_whole).nonzero().squeeze(1)
    if len(again) == 0:
        return token_ids, logprobs, kept
    own = None if uniforms is None else uniforms[again]
    ids, logps, sets, _ = _drawn(scaled[again], sampling, own, scaled.shape[1], most)
    for target, source in ((token_ids, ids), (logprobs, logps), (kept.counts, sets.counts), (kept.ids, sets.ids)):
        target[again] = source
    if sets.bits is not None:
        if kept.bits is None:
            kept.bits = sets.bits.new_zeros(len(scaled), sets.bits.shape[1])
        kept.bits[again] = sets.bits
    return token_ids, logprobs, kept


def _drawn(
    scaled: Tensor, sampling: SamplingParams, uniforms: Tensor | None, ranked: int, most: int
) -> tuple[Tensor, Tensor, KeptSets, Tensor]:
    """Draws from rankings of the first `ranked` tokens; also returns whether these hold all that is kept."""
    order = _ranking(scaled, ranked)
    values = scaled.gather(1, order)
    everything = values if sampling.top_k else scaled  # what top_p is a share of
    counts = _kept_counts(values, everything.logsumexp(dim=1, keepdim=True), sampling)
    is_cut = torch.arange(ranked, device=scaled.device) >= counts[:, None]
    values = values.masked_fill_(is_cut, -math.inf)
    probabilities = values.softmax(dim=1)
    if sampling.greedy:
        place = torch.zeros_like(counts)[:, None]
    else:
        cumulative = probabilities.cumsum(dim=1, dtype=torch.float64)
        place = torch.searchsorted(cumulative, uniforms.unsqueeze(1) * cumulative[:, -1:], right=True)
        place = torch.minimum(place, counts[:, None] - 1)
    needs_bits = ranked > most and (not _looks_are_free(scaled) or bool((counts > most).any()))
    bits = packed(torch.zeros_like(scaled, dtype=torch.bool).scatter_(1, order, ~is_cut)) if needs_bits else None
    kept = KeptSets(counts, order[:, :most].int(), bits)
    is_whole = counts < ranked if ranked < scaled.shape[1] else torch.ones_like(counts, dtype=torch.bool)
    return order.gather(1, place).squeeze(1), probabilities.gather(1, place).log_().squeeze(1), kept, is_whole


def _ranking(scaled: Tensor, count: int) -> Tensor:
    """Returns the ids of the `count` largest entries of each row, in order; of equal ones the smaller id first."""
    bits = scaled.add(0.0).view(torch.int32)  # 0 for -0
    bits ^= (bits >> 31) & 0x7FFFFFFF  # as integers in the order of the floats
    ids = torch.arange(scaled.shape[1] - 1, -1, -1, device=scaled.device)
    keys = bits.long().bitwise_left_shift_(_ID_BITS).add_(ids)
    first = keys.topk(count, dim=1)[0] if count < scaled.shape[1] else keys.sort(dim=1, descending=True)[0]
    return (scaled.shape[1] - 1) - first.bitwise_and_((1 << _ID_BITS) - 1)


def _kept_counts(values: Tensor, normalizer: Tensor, sampling: SamplingParams) -> Tensor:
    """How many of the first of each ranking are kept, at least 1: `(rows, ranked)` -> `(rows,)`."""
    kept = torch.ones_like(values, dtype=torch.bool)
    probabilities = (values - normalizer).exp_()
    if sampling.top_p < 1.0:
        before = probabilities.cumsum(dim=1, dtype=torch.float64) - probabilities
        kept &= before < sampling.top_p
    if sampling.min_p:
        kept &= probabilities >= sampling.min_p * probabilities[:, :1]
    return kept.sum(dim=1).clamp_(min=1)


def joined_sets(parts: Sequence[KeptSets]) -> KeptSets:
    """The sets of several batches of rows, one after the other."""
    bits = None
    if any(part.bits is not None for part in parts):
        width = next(part.bits.shape[1] for part in parts if part.bits is not None)
        of_parts = [part.counts.new_zeros(len(part.counts), width, dtype=torch.uint8) for part in parts]
        bits = torch.cat(
            [none if part.bits is None else part.bits for part, none in zip(parts, of_parts, strict=True)]
        )
    return KeptSets(torch.cat([part.counts for part in parts]), torch.cat([part.ids for part in parts]), bits)
