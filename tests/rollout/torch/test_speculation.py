# SPDX-License-Identifier: Apache-2.0
"""Speculation draws the same ids as decoding one token at a time, with log-probabilities as close as rounding allows.

Two passes over one token differ by rounding, about 1e-6 in these models, and a draw by as much of probability. So of
100,000 tokens, one differs in about one of ten runs of such a test with another seed; with these seeds, none does.
"""

import pytest
import torch
from naming import raises_naming
from sessions import sessions_for
from tiny import make_llama, make_policy, random_ids
from transformers import MambaConfig, MambaForCausalLM, MistralConfig, MistralForCausalLM

from minimind_hf.rollout import SamplingParams, TorchEngine
from minimind_hf.rollout.torch.cache_decoder import CacheDecoder
from minimind_hf.rollout.torch.fast_decoder import FastDecoder
from minimind_hf.rollout.torch.pass_costs import FEW_ROWS, ROWS, SIZES, PassCosts

EOS = 2
FREE = {"steps": dict.fromkeys(ROWS, 1.0), "blocks": dict.fromkeys(SIZES, 1.0), "guess": 0.0}  # every guess pays
DEAR = FREE | {"blocks": {size: float(size) for size in SIZES}}
PATHS = ("fast", "general")
TRUNCATED = {"top_p": 0.9, "top_k": 40}


def engine_for(model, costs=FREE, speculation="self", **settings) -> TorchEngine:
    engine = TorchEngine(speculation=speculation, **settings)
    engine.sync_weights(model, 7)
    if engine.speculator is not None and costs:
        engine.speculator.costs = PassCosts(**costs)
    return engine


def repeating(scale: float = 6.0, make=make_policy):
    """A policy sure enough of most tokens to say again what it said."""
    model = make(scale=2.0)
    with torch.no_grad():
        model.lm_head.weight.mul_(scale)
    return model


def settings_of(length=60, **changes) -> SamplingParams:
    return SamplingParams(length, 0.8, (EOS,), **changes)


def assert_same(found, expected, atol=2e-5):
    assert [each.completion_ids for each in found] == [each.completion_ids for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert (one.finish_reason, one.loss_mask, one.weights_version) == (
            other.finish_reason,
            other.loss_mask,
            other.weights_version,
        )
        torch.testing.assert_close(torch.tensor(one.logprobs), torch.tensor(other.logprobs), atol=atol, rtol=0)
        assert (one.kept is None) == (other.kept is None)
        if one.kept is not None:
            assert [set_.tolist() for set_ in one.kept] == [set_.tolist() for set_ in other.kept]


@pytest.mark.parametrize(
    "truncation", [{}, pytest.param(TRUNCATED, marks=pytest.mark.slow)], ids=["whole", "truncated"]
)
@pytest.mark.parametrize("path", PATHS)
def test_a_thousand_rollouts_are_the_same_with_and_without(path, truncation):
    model, prompts = repeating(), random_ids(12, low=2)
    plain, guessing = (engine_for(model, speculation=each, path=path, max_batch_rows=48) for each in (None, "self"))
    drafted = accepted = tokens = 0
    for seed in range(3):  # three epochs of the same prompts
        sampling = settings_of(40, seed=seed, **truncation)
        expected, found = (engine.generate(prompts, 28, sampling) for engine in (plain, guessing))
        assert len(found) == 336
        assert_same(found, expected)
        measured = guessing.measured()
        accepted, drafted = accepted + measured["rollout/acceptance"][0], drafted + measured["rollout/acceptance"][1]
        tokens += measured["rollout/tokens_per_pass"][0]
        assert measured["rollout/tokens_per_pass"][0] == sum(len(each.completion_ids) for each in found)
    assert drafted > accepted > tokens / 10


@pytest.mark.slow
@pytest.mark.parametrize("truncation", [{}, TRUNCATED], ids=["whole", "truncated"])
@pytest.mark.parametrize("path", PATHS)
def test_a_thousand_episodes_are_the_same_with_and_without(path, truncation):
    model, prompts = repeating(4.0), random_ids(12, low=2)
    plain, guessing = (engine_for(model, speculation=each, path=path, max_batch_rows=40) for each in (None, "self"))
    accepted = 0
    for seed in range(3):
        sampling = SamplingParams(60, 0.8, tuple(range(2, 60)), seed, max_turn_length=14, **truncation)
        expected, found = (engine.converse(sessions_for(prompts, 28), sampling) for engine in (plain, guessing))
        assert len(found) == 336 and max(len(each.turns) for each in found) > 2
        assert_same(found, expected)
        accepted += guessing.measured()["rollout/acceptance"][0]
    assert accepted > 1000


@pytest.mark.parametrize("policy", ["moe", "yarn", "llama"])
def test_other_policies(policy):
    changes = {"moe": {"use_moe": True}, "yarn": {"inference_rope_scaling": True}}.get(policy)
    make = make_llama if changes is None else lambda scale: make_policy(scale=scale, **changes)
    model = repeating(30.0 if policy == "llama" else 6.0, make)
    prompts, sampling = random_ids(4), settings_of()
    expected = engine_for(model, speculation=None).generate(prompts, 6, sampling)
    engine = engine_for(model)
    assert_same(engine.generate(prompts, 6, sampling), expected)
    assert engine.measured()["rollout/acceptance"][0] > 50


@pytest.mark.parametrize("path", PATHS)
def test_greedy_drafts_are_right_in_the_second_epoch(path):
    model, prompts = make_policy(), random_ids(3)
    engine, sampling = engine_for(model, path=path), settings_of(greedy=True)
    expected = engine_for(model, speculation=None, path=path).generate(prompts, 1, sampling)
    for _ in range(2):
        assert_same(engine.generate(prompts, 1, sampling), expected)
        measured = engine.measured()
    (accepted, drafted), (tokens, passes) = measured.values()
    assert accepted > 0.9 * drafted and tokens > 5 * passes


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("path", PATHS)
def test_neither_rows_nor_costs_change_what_is_drawn(path, rows):
    model, prompts, sampling = repeating(), random_ids(4), settings_of(30)
    expected = engine_for(model, speculation=None, path=path).generate(prompts, 5, sampling)
    for costs in (FREE, DEAR):
        engine = engine_for(model, costs, path=path, max_batch_rows=rows)
        assert_same(engine.generate(prompts, 5, sampling), expected)
        assert (engine.measured()["rollout/acceptance"][1] > 0) == (costs is FREE)


@pytest.mark.parametrize("rows", [1, 6])
def test_no_more_rows_are_measured_than_have_memory(rows, monkeypatch):
    started = []
    for decoder in (FastDecoder, CacheDecoder):
        original = decoder.start_rows

        def start_rows(self, groups, original=original):
            started.append(len(groups))
            original(self, groups)

        monkeypatch.setattr(decoder, "start_rows", start_rows)
    for path in PATHS:
        engine = engine_for(make_policy(), None, path=path, max_batch_rows=rows)
        engine.generate(random_ids(4), 3, settings_of(6))
        assert max(engine.speculator.costs.steps) == 4 <= max(started) <= max(rows, FEW_ROWS)


def test_costs_are_measured_once():
    model, prompts, sampling = make_policy(), random_ids(4), settings_of(6)
    for path in PATHS:
        engine = engine_for(model, None, path=path)
        expected = engine_for(model, speculation=None, path=path).generate(prompts, 3, sampling)
        before = torch.get_rng_state()
        assert_same(engine.generate(prompts, 3, sampling), expected)
        assert torch.equal(torch.get_rng_state(), before)
        costs = engine.speculator.costs
        assert (tuple(costs.steps), tuple(costs.blocks)) == (ROWS, SIZES)
        assert all(0 < seconds < 60 for seconds in (*costs.steps.values(), *costs.blocks.values()))
        assert_same(engine.generate(prompts, 3, sampling), expected)
        assert engine.speculator.costs is costs


def test_a_run_that_goes_on_from_its_state_repeats_to_the_last_bit():
    model, prompts = repeating(), random_ids(4)
    straight = engine_for(model)
    for seed in range(3):
        if seed == 2:
            resumed = engine_for(model, None)
            resumed.load_state_dict(straight.state_dict())
        expected = straight.generate(prompts, 4, settings_of(seed=seed))
        straight.measured() if seed < 2 else None
    assert resumed.generate(prompts, 4, settings_of(seed=2)) == expected
    assert resumed.measured() == straight.measured()
    assert str(resumed.state_dict()) == str(straight.state_dict())


def test_what_cannot_be_cut_back_is_refused():
    mamba = MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2, state_size=4))
    window = MistralForCausalLM(
        MistralConfig(
            vocab_size=64,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            sliding_window=8,
        )
    )
    for model in (mamba, window):
        with raises_naming(ValueError, "speculation", "'self'", type(model).__name__):
            TorchEngine(speculation="self").check_ready(model, 8, 8)
        with raises_naming(ValueError, "speculation", "'self'", type(model).__name__):
            engine_for(model).generate([[5]], 1, settings_of())
    with raises_naming(ValueError, "speculation", "'self'", "path", "'graph'"):
        TorchEngine(path="graph", speculation="self")
    with raises_naming(ValueError, "speculation", "'self'", "'ngram'"):
        TorchEngine(speculation="ngram")


def test_a_model_that_can_is_tried_before_training():
    engine = TorchEngine(path="general", speculation="self")
    engine.check_ready(make_policy(), 8, 8)
    assert engine.speculator is not None and engine.speculator.costs is None and not engine.speculator.earlier
