# SPDX-License-Identifier: Apache-2.0
"""Several tokens behind every row of a decoder at once, and rows that are cut back, against plain forwards."""

import random

import pytest
import torch
from naming import raises_naming
from tiny import make_policy, random_ids
from transformers import BloomConfig, BloomForCausalLM, GPT2Config, GPT2LMHeadModel, OPTConfig, OPTForCausalLM

from minimind_hf.rollout.torch import cache_decoder
from minimind_hf.rollout.torch.cache_decoder import CacheDecoder
from minimind_hf.rollout.torch.fast_decoder import FastDecoder
from minimind_hf.rollout.torch.fast_weights import pack
from minimind_hf.rollout.torch.recurrent_decoder import RecurrentDecoder
from minimind_hf.rollout.torch.static_decoder import StaticDecoder


def of_its_own(model_class, config):
    torch.manual_seed(0)
    return model_class(config).eval()


# Positions come from the argument, from sines, from the mask, or from distances.
POLICIES = {
    "minimind": lambda: make_policy(scale=2.0),
    "moe": lambda: make_policy(scale=2.0, use_moe=True),
    "gpt2": lambda: of_its_own(
        GPT2LMHeadModel, GPT2Config(vocab_size=259, n_embd=32, n_layer=2, n_head=4, n_positions=48)
    ),
    "opt": lambda: of_its_own(
        OPTForCausalLM,
        OPTConfig(vocab_size=259, hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4),
    ),
    "bloom": lambda: of_its_own(BloomForCausalLM, BloomConfig(vocab_size=259, hidden_size=32, n_layer=2, n_head=4)),
}


def make_fast(model) -> FastDecoder:
    return FastDecoder(pack(model), max_rows=6, max_groups=3, max_prompt_length=12, max_completion_length=36)


CASES = [("fast", "minimind"), ("fast", "moe")] + [("general", policy) for policy in POLICIES]


class Told:
    """What every row of a decoder should hold."""

    def __init__(self, model, decoder, prompts, groups):
        self.model, self.decoder = model, decoder
        decoder.prefill(prompts)
        decoder.start_rows(groups)
        self.rows = [list(prompts[group]) for group in groups]

    def expect(self, logits, behind):
        expected = torch.stack([self.model(torch.tensor([ids])).logits[0, -1] for ids in behind])
        torch.testing.assert_close(logits, expected, atol=2e-5, rtol=0)

    def append(self, runs):
        behind = [[*row, *run[: end + 1]] for row, run in zip(self.rows, runs, strict=True) for end in range(len(run))]
        self.expect(self.decoder.append(runs), behind)
        for row, run in zip(self.rows, runs, strict=True):
            row += run

    def step(self, tokens):
        for row, token in zip(self.rows, tokens, strict=True):
            row.append(token)
        self.expect(self.decoder.step(torch.tensor(tokens)), self.rows)

    def cut(self, counts):
        self.decoder.cut(counts)
        self.rows = [row[: len(row) - count] for row, count in zip(self.rows, counts, strict=True)]

    def reorder(self, order):
        self.decoder.reorder(order)
        self.rows = [self.rows[number] for number in order]


@pytest.mark.parametrize("most_holes", [0, 5, 1000])
@pytest.mark.parametrize(("decoder", "policy"), CASES)
@torch.no_grad()
def test_logits_behind_every_token_after_any_cuts(decoder, policy, most_holes, monkeypatch):
    monkeypatch.setattr(cache_decoder, "MAX_HOLES", most_holes)
    model, rng = POLICIES[policy](), random.Random(1)
    told = Told(model, {"fast": make_fast, "general": CacheDecoder}[decoder](model), random_ids(3), [0, 0, 1, 2, 2])
    for turn in range(6):
        if turn % 2:
            told.step([rng.randrange(3, 259) for _ in told.rows])
        runs = [[rng.randrange(3, 259) for _ in range(rng.randint(1, 5))] for _ in told.rows]
        told.append(runs)
        told.cut([rng.randint(0, len(run)) for run in runs])
        if turn == 3:
            told.reorder([4, 1, 2])
    told.append([[7], [8], [9]])
    told.step([10, 11, 12])


@pytest.mark.parametrize("decoder", ["fast", "general"])
@torch.no_grad()
def test_rows_that_were_cut_are_put_aside_without_what_was_cut(decoder):
    model = POLICIES["minimind"]()
    told = Told(model, {"fast": make_fast, "general": CacheDecoder}[decoder](model), random_ids(2), [0, 1, 1])
    told.append([[5, 6, 7], [8], [9, 10]])
    told.cut([2, 0, 1])
    parked = told.decoder.park([0, 2], [0, 1])
    rows = [told.rows[1], told.rows[0], told.rows[2][:-1]]
    told.reorder([1])
    logits = told.decoder.extend(parked, [[20, 21], [22]])
    told.rows = [rows[0], [*rows[1], 20, 21], [*rows[2], 22]]
    told.expect(logits, told.rows[1:])
    told.append([[30, 31], [32], [33, 34, 35]])


def test_operations_do_not_grow_with_rows():
    """Drafts would not pay if every row cost operations of its own."""
    model, counts = POLICIES["minimind"](), []
    for rows in (2, 6):
        with torch.inference_mode():
            decoder = make_fast(model)
            decoder.prefill(random_ids(2))
            decoder.start_rows([0, 1] * (rows // 2))
            with torch.profiler.profile() as profile:
                decoder.append([[5, 6, 7], [8]] * (rows // 2))
        counts.append(sum(event.count for event in profile.key_averages() if event.key.startswith("aten::")))
    assert counts[0] == counts[1]


@torch.no_grad()
def test_decoders_that_cannot_say_so():
    model = POLICIES["minimind"]()
    for decoder in (RecurrentDecoder(model), StaticDecoder(model, 10)):
        for method, argument in (("append", [[5]]), ("cut", [1])):
            with raises_naming(NotImplementedError, type(decoder).__name__):
                getattr(decoder, method)(argument)
