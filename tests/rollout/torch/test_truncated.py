# SPDX-License-Identifier: Apache-2.0
"""Drawing from a truncated distribution: which tokens are kept, how often they are drawn, and what comes back."""

import math

import numpy as np
import pytest
import torch
from naming import raises_naming
from sessions import sessions_for
from tiny import EOS, make_policy, random_ids
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from minimind_hf.forward.kept_tokens import KeptTokens
from minimind_hf.forward.layouts import score_completions
from minimind_hf.forward.token_batch import TokenBatch
from minimind_hf.rollout import SamplingParams, TorchEngine, check_episodes, check_rollouts, play_in_rounds
from minimind_hf.rollout.torch import truncated
from minimind_hf.rollout.torch.truncated import sample_truncated

CPU = torch.device("cpu")
TRUNCATED = [
    {"top_k": 5},
    {"top_p": 0.85},
    {"min_p": 0.1},
    {"top_k": 50, "top_p": 0.95},
    {"top_k": 20, "top_p": 0.9, "min_p": 0.05},
    {"top_p": 0.9, "min_p": 0.01},
]
PATHS = ("fast", "general", "graph")


def params(greedy=False, **changes) -> SamplingParams:
    return SamplingParams(1, 0.8, (), greedy=greedy, **changes)


def draw(logits, seed=0, **changes):
    uniforms = torch.rand(len(logits), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    ids, logps, kept = sample_truncated(logits, params(**changes), uniforms)
    return ids, logps, ~KeptTokens.of(kept.to_host()).cut(logits.shape[1], CPU)


def kept_by_transformers(logits, top_k=0, top_p=1.0, min_p=0.0):
    scores = logits.double() / 0.8
    for warper, value, off in (
        (TopKLogitsWarper, top_k, 0),
        (TopPLogitsWarper, top_p, 1),
        (MinPLogitsWarper, min_p, 0),
    ):
        scores = scores if value == off else warper(value)(None, scores)
    return scores > -math.inf


@pytest.mark.parametrize("vocab", [7, 259, 6400])
@pytest.mark.parametrize("settings", TRUNCATED, ids=str)
def test_the_sets_are_those_of_transformers(settings, vocab):
    for scale in (0.1, 1.0, 4.0):  # from sets of nearly all to sets of one
        logits = scale * torch.randn(30, vocab, generator=torch.Generator().manual_seed(vocab))
        ids, logps, kept = draw(logits, **settings)
        assert torch.equal(kept, kept_by_transformers(logits, **settings))
        over = (logits.double() / 0.8).masked_fill(~kept, -math.inf).log_softmax(dim=1)
        torch.testing.assert_close(logps.double(), over.gather(1, ids[:, None]).squeeze(1), atol=1e-5, rtol=0)
        assert kept.gather(1, ids[:, None]).all()


@pytest.mark.parametrize("settings", TRUNCATED, ids=str)
def test_frequencies_are_the_probabilities_over_the_set(settings):
    # 100000 draws: the standard error of a frequency is at most sqrt(0.25 / 100000) = 0.0016.
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(3)) * 1.5
    ids, _, kept = draw(logits.expand(100_000, -1), **settings)
    expected = (logits[0] / 0.8).masked_fill(~kept[0], -math.inf).softmax(dim=0)
    found = torch.bincount(ids, minlength=40) / 100_000
    torch.testing.assert_close(found, expected, atol=0.009, rtol=0)
    assert not found[~kept[0]].any()


def test_equal_logits_are_ranked_by_id():
    logits = torch.tensor([[1.0, 2.0, 1.0, 1.0, -0.0, 0.0]]).expand(50, -1)
    assert draw(logits, top_k=2)[2][0].nonzero().squeeze(1).tolist() == [0, 1]
    assert draw(logits, top_k=5)[2][0].nonzero().squeeze(1).tolist() == [0, 1, 2, 3, 4]
    equal = torch.zeros(50, 6400)
    assert draw(equal, top_k=3)[2].sum(dim=1).eq(3).all() and draw(equal, top_k=3)[2][:, :3].all()
    # 320 of 6400 equal ones have 5 %, more than are looked at first.
    kept = draw(equal, top_p=0.05)[2]
    assert kept[:, :320].all() and not kept[:, 321:].any()


def test_at_least_one_token_is_kept():
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    for settings in ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}):
        ids, logps, kept = draw(logits, **settings)
        assert ids.tolist() == [1] and logps.tolist() == [0.0] and kept.tolist() == [[False, True, False]]


def test_the_whole_vocabulary_may_be_kept():
    logits = torch.zeros(3, 40)
    ids, logps, kept = draw(logits, top_k=100)
    assert kept.all()
    torch.testing.assert_close(logps, torch.full((3,), 1 / 40).log())


def test_impossible_tokens_are_never_drawn():
    logits = torch.tensor([-math.inf, 0.0, -math.inf, 0.0]).expand(1000, -1)
    for settings in ({"top_k": 3}, {"top_p": 0.999}, {"min_p": 0.5}):
        assert set(draw(logits, **settings)[0].tolist()) == {1, 3}


def test_greedy_takes_the_likeliest_with_its_logprob_over_the_set():
    logits = torch.tensor([[0.0, 3.0, 1.0], [2.0, 0.0, 1.0]])
    ids, logps, _ = sample_truncated(logits, params(greedy=True, top_k=2))
    assert ids.tolist() == [1, 0]
    expected = torch.tensor([[3.0, 1.0], [2.0, 1.0]]) / 0.8
    torch.testing.assert_close(logps, expected.log_softmax(dim=1)[:, 0])


def test_what_is_drawn_in_a_row_does_not_depend_on_others(monkeypatch):
    # Some rows need a whole ranking, others do not; either way each is drawn as alone, and as from a whole ranking.
    scales = torch.tensor([0.1, 6.0, 0.5, 3.0, 0.2])[:, None]
    logits = scales * torch.randn(5, 6400, generator=torch.Generator().manual_seed(0))
    uniforms = torch.rand(5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    settings = params(top_p=0.9)
    ids, logps, kept = sample_truncated(logits, settings, uniforms)
    sets = kept.to_host()
    assert {one.dtype for one in sets} == {np.dtype(np.uint8), np.dtype(np.int32)}
    for row in range(5):
        one = sample_truncated(logits[row : row + 1], settings, uniforms[row : row + 1])
        assert (one[0].item(), one[1].item()) == (ids[row].item(), logps[row].item())
        assert np.array_equal(one[2].to_host()[0], sets[row])
    monkeypatch.setattr(truncated, "_FIRST_LOOK", 6400)
    whole = sample_truncated(logits, settings, uniforms)
    assert torch.equal(whole[0], ids) and torch.equal(whole[1], logps)
    assert all(map(np.array_equal, whole[2].to_host(), sets))


def test_sets_take_no_more_than_a_bit_per_id():
    logits = torch.randn(20, 6400, generator=torch.Generator().manual_seed(0))
    for settings in ({"top_p": 0.95}, {"top_k": 3000}, {"top_k": 50}):
        _, _, kept = sample_truncated(logits, params(**settings), torch.rand(20, dtype=torch.float64))
        assert all(one.nbytes <= 800 for one in kept.to_host())


# The engine


def engine_for(model, **kwargs) -> TorchEngine:
    engine = TorchEngine(**kwargs)
    engine.sync_weights(model, version=7)
    return engine


def settings_of(length=10, **changes):
    return SamplingParams(length, 0.8, (EOS,), **changes)


def assert_scored_as_drawn(model, prompts, rollouts):
    batch = TokenBatch(
        prompt_ids=prompts,
        completion_ids=[rollout.completion_ids for rollout in rollouts],
        group_ids=list(range(len(prompts))),
        device=CPU,
        scored=[rollout.loss_mask or [1] * len(rollout.completion_ids) for rollout in rollouts],
        kept=[KeptTokens.of(rollout.kept) for rollout in rollouts],
    )
    with torch.no_grad():
        logps = score_completions(model, batch, 0.8, "padded").logps
    for row, rollout in zip(logps, rollouts, strict=True):
        own = torch.tensor(rollout.logprobs)
        torch.testing.assert_close(row[: len(own)], own, atol=1e-5, rtol=0)


@pytest.mark.parametrize("block_size", [1, 4])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("settings", TRUNCATED[1:4], ids=str)
def test_log_probabilities_are_those_over_the_sets(settings, path, block_size, monkeypatch):
    monkeypatch.setattr(truncated, "_FIRST_LOOK", 16)
    model, prompts = make_policy(), random_ids(4)
    with torch.no_grad():
        model.lm_head.weight.mul_(3.0)  # sets of one token to some hundred
    sampling = settings_of(**settings)
    engine = engine_for(model, path=path, max_batch_rows=5)
    original = engine._run

    def run(prompt_ids, sampling, make, **sizes):
        return original(prompt_ids, sampling, lambda d, **o: make(d, **o | {"block_size": block_size}), **sizes)

    monkeypatch.setattr(engine, "_run", run)
    rollouts = engine.generate(prompts, 3, sampling)
    check_rollouts(rollouts, 12, 259, engine, 10, sampling)
    assert_scored_as_drawn(model, [ids for ids in prompts for _ in range(3)], rollouts)
    sets = [one for rollout in rollouts for one in rollout.kept]
    assert len(sets) > 50 and {one.dtype for one in sets} == {np.dtype(np.uint8), np.dtype(np.int32)}


@pytest.mark.parametrize("path", PATHS)
def test_rows_change_nothing(path):
    model, prompts = make_policy(scale=2.0), random_ids(4)
    sampling = settings_of(top_p=0.8, top_k=30)
    expected = engine_for(model, path=path).generate(prompts, 3, sampling)
    for max_batch_rows in (1, 4):
        found = engine_for(model, path=path, max_batch_rows=max_batch_rows).generate(prompts, 3, sampling)
        assert [each.completion_ids for each in found] == [each.completion_ids for each in expected]


def test_without_truncation_there_are_no_sets_and_the_draws_are_the_same():
    model, prompts = make_policy(scale=2.0), random_ids(4)
    off = engine_for(model).generate(prompts, 3, settings_of(top_k=0, top_p=1.0, min_p=0.0))
    assert off == engine_for(model).generate(prompts, 3, settings_of())
    assert all(rollout.kept is None for rollout in off)


@pytest.mark.parametrize("by_rounds", [False, True], ids=["converse", "rounds"])
def test_answers_of_episodes_have_no_sets(by_rounds):
    model, sessions = make_policy(scale=2.0), sessions_for(random_ids(4), 3)
    sampling = SamplingParams(60, 0.8, tuple(range(2, 100)), max_turn_length=20, top_p=0.9)
    engine = engine_for(model, max_batch_rows=5)
    rollouts = play_in_rounds(engine, sessions, sampling) if by_rounds else engine.converse(sessions, sampling)
    check_episodes(rollouts, 12, 259, engine, sampling)
    assert max(len(rollout.turns) for rollout in rollouts) > 1
    for rollout in rollouts:
        assert [len(one) > 0 for one in rollout.kept] == [bool(own) for own in rollout.loss_mask]
    assert_scored_as_drawn(model, [list(session.prompt_ids) for session in sessions], rollouts)


def test_bounds():
    for name, value in (("top_k", -1), ("top_p", 0.0), ("top_p", 1.5), ("min_p", -0.1), ("min_p", 1.5)):
        with raises_naming(ValueError, name, value):
            settings_of(**{name: value})
