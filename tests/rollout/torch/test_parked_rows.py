# SPDX-License-Identifier: Apache-2.0
"""Rows that leave the batch of a decoder and come back with tokens behind them."""

import pytest
import torch
from tiny import make_policy, random_ids

from minimind_hf.rollout.torch.cache_decoder import CacheDecoder
from minimind_hf.rollout.torch.fast_decoder import FastDecoder
from minimind_hf.rollout.torch.fast_weights import pack
from minimind_hf.rollout.torch.static_decoder import StaticDecoder

LONGEST = 40


def make_fast(model) -> FastDecoder:
    return FastDecoder(pack(model), max_rows=6, max_groups=3, max_prompt_length=12, max_completion_length=LONGEST)


DECODERS = {
    "fast": make_fast,
    "general": CacheDecoder,
    "graph": lambda model: StaticDecoder(model, LONGEST),
}


def logits_behind(model, ids) -> torch.Tensor:
    return model(torch.tensor([ids])).logits[0, -1]


@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_rows_come_back_behind_those_that_stayed(name):
    model, prompts = make_policy(scale=2.0), random_ids(3)
    decoder = DECODERS[name](model)
    decoder.prefill(prompts)
    decoder.start_rows([0, 0, 1, 2])
    told = [list(prompts[group]) for group in (0, 0, 1, 2)]

    def step(rows, tokens):
        logits = decoder.step(torch.tensor(tokens))
        for row, token in zip(rows, tokens, strict=True):
            told[row].append(token)
        expected = torch.stack([logits_behind(model, told[row]) for row in rows])
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)

    step([0, 1, 2, 3], [9, 8, 7, 6])
    step([0, 1, 2, 3], [19, 18, 17, 16])
    parked = decoder.park([1, 2], [0, 1])  # the last token of row 2 does not count
    told[2].pop()
    decoder.reorder([0, 3])
    step([0, 3], [29, 26])
    told[1] += [50, 51, 52]
    logits = decoder.extend(parked[:1], [[50, 51, 52]])
    torch.testing.assert_close(logits[0], logits_behind(model, told[1]), atol=1e-5, rtol=0)
    step([0, 3, 1], [30, 31, 32])
    told[2] += [60]
    logits = decoder.extend(parked[1:], [[60]])
    torch.testing.assert_close(logits[0], logits_behind(model, told[2]), atol=1e-5, rtol=0)
    step([0, 3, 1, 2], [33, 34, 35, 36])
    # All at once, out of an empty batch, with runs of unequal length.
    parked = decoder.park([3, 0, 1], [0, 0, 0])
    decoder.reorder([])
    rows, runs = [2, 0, 3], [[70], [71, 72, 73, 74, 75], [76, 77]]
    for row, ids in zip(rows, runs, strict=True):
        told[row] += ids
    logits = decoder.extend(parked, runs)
    expected = torch.stack([logits_behind(model, told[row]) for row in rows])
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)
    step(rows, [37, 38, 39])


@torch.no_grad()
def test_what_is_put_aside_is_as_long_as_its_tokens():
    model, prompts = make_policy(), [[5, 6, 7], [8] * 12]
    fast, general = make_fast(model), CacheDecoder(model)
    for decoder in (fast, general):
        decoder.prefill(prompts)
        decoder.start_rows([0, 1])
        for token in range(10, 14):
            decoder.step(torch.tensor([token, token]))
    row = fast.park([0], [1])[0]
    layers, heads, width = 2, 2, 8
    assert row.memory.untyped_storage().nbytes() == layers * 2 * heads * 3 * width * 4  # the prompt stays in its place
    row = general.park([0], [1])[0]
    sizes = [part.untyped_storage().nbytes() for layer in row.layers for part in layer]
    assert sizes == [heads * (3 + 3) * width * 4] * 2 * layers  # padding stays behind
