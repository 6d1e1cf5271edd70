# SPDX-License-Identifier: Apache-2.0
"""Truncated sampling on a server: `top_k` through its top log-probabilities, all else refused by name."""

import math

import pytest
import torch
from naming import raises_naming
from sessions import sessions_for
from sglang_double import SGLangDouble
from tiny import EOS, QUIET, make_policy

from minimind_hf import GRPOConfig
from minimind_hf.forward.kept_tokens import KeptTokens
from minimind_hf.forward.logprobs import completion_scores
from minimind_hf.rollout import RolloutServerError, SamplingParams, SGLangEngine, check_episodes, check_rollouts
from minimind_hf.rollout.exported_weights import exported_config, exported_weights, write_weights
from minimind_hf.rollout.sglang.top_k import over_top_k

PROMPTS = [[5, 6, 7], [8], [9, 10]]


def sampling(**changes) -> SamplingParams:
    return SamplingParams(**{"max_completion_length": 8, "temperature": 0.8, "eos_token_ids": (EOS,)} | changes)


@pytest.fixture
def double(tmp_path):
    model = make_policy()
    write_weights(exported_weights(model), exported_config(model), tmp_path)
    double = SGLangDouble(tmp_path)
    yield double
    double.stop()


@pytest.fixture
def engine(double, tmp_path):
    engine = SGLangEngine([double.url], sync_folder=tmp_path / "sync", server_timeout=60.0)
    engine.sync_weights(make_policy(), version=3)
    yield engine
    engine.close()


def test_completions_are_scored_over_the_servers_top(engine, double):
    params, model = sampling(top_k=5), make_policy()
    rollouts = engine.generate(PROMPTS, 2, params)
    check_rollouts(rollouts, 6, 259, engine, 8, params)
    asked = double.requests["/generate"][-1]
    assert asked["top_logprobs_num"] == asked["sampling_params"]["top_k"] == 5
    for number, rollout in enumerate(rollouts):
        prompt, completion = torch.tensor([PROMPTS[number // 2]]), torch.tensor([rollout.completion_ids])
        masks = torch.ones_like(prompt), torch.ones_like(completion)
        assert all(len(ids) == 5 for ids in rollout.kept)
        kept = KeptTokens.of(rollout.kept)
        with torch.no_grad():
            own = completion_scores(model, prompt, masks[0], completion, masks[1], 0.8, kept=kept).logps[0]
        assert rollout.logprobs == pytest.approx(own.tolist(), abs=1e-5)


def test_episodes_keep_the_sets_of_their_turns(engine):
    params = sampling(top_k=5, max_completion_length=40, max_turn_length=8, eos_token_ids=tuple(range(2, 150)))
    sessions = sessions_for(PROMPTS, 2)
    rollouts = engine.converse(sessions, params)
    check_episodes(rollouts, 6, 259, engine, params)
    assert max(len(rollout.turns) for rollout in rollouts) > 1
    for rollout in rollouts:
        assert [len(ids) for ids in rollout.kept] == [5 * own for own in rollout.loss_mask]


def test_without_top_k_no_tops_are_asked_for(engine, double):
    rollouts = engine.generate(PROMPTS, 1, sampling())
    assert "top_logprobs_num" not in double.requests["/generate"][-1]
    assert all(rollout.kept is None for rollout in rollouts)


@pytest.mark.parametrize(("name", "value"), [("top_p", 0.9), ("min_p", 0.1)])
def test_truncation_that_a_server_does_not_tell_is_refused(engine, tmp_path, name, value):
    with raises_naming(ValueError, name, value, "top_k", "rollout_engine='torch'"):
        engine.generate(PROMPTS, 1, sampling(**{name: value, "top_k": 5}))
    servers = {"rollout_engine": "sglang", "sglang_base_url": ["http://localhost:1"]}
    with raises_naming(ValueError, name, value, "top_k", "rollout_engine='torch'"):
        GRPOConfig(output_dir=str(tmp_path), **QUIET, **servers, **{name: value})
    assert GRPOConfig(output_dir=str(tmp_path), **QUIET, **servers, top_k=5).top_k == 5


def test_log_probabilities_over_the_top_by_hand():
    # 0.4 and 0.2 of the whole are 2/3 and 1/3 of the top.
    top = [[math.log(0.4), 7, None], [math.log(0.2), 3, None]]
    (logp,), (ids,) = over_top_k([[math.log(0.2), 3, None]], [top], 2)
    assert logp == pytest.approx(math.log(1 / 3)) and ids.tolist() == [7, 3]


def test_a_tie_at_the_end_of_the_top_may_be_drawn():
    top = [[math.log(0.4), 7, None], [math.log(0.2), 3, None]]
    (logp,), (ids,) = over_top_k([[math.log(0.2), 9, None]], [top], 2)
    assert logp == pytest.approx(math.log(0.25)) and ids.tolist() == [7, 3, 9]


def test_tops_that_do_not_belong_to_the_tokens_are_refused(engine, double):
    top = [[-1.0, 7, None], [-2.0, 3, None]]
    with raises_naming(ValueError, "token 0", "id 9", "-3.0000", "top_k=2"):
        over_top_k([[-3.0, 9, None]], [top], 2)
    with raises_naming(ValueError, "0 lists", "1 tokens"):
        over_top_k([[-1.0, 7, None]], [], 2)
    for tops in (None, [[-1.0, number, None] for number in range(3)]):
        with raises_naming(ValueError, len(tops or ()), "token 0", "top_k=2"):
            over_top_k([[-1.0, 0, None]], [tops], 2)

    def forget(answer):
        items = answer()
        for item in items:
            del item["meta_info"]["output_top_logprobs"]
        return items

    double.next("/generate", forget)
    with raises_naming(RolloutServerError, "output_top_logprobs"):
        engine.generate(PROMPTS[:1], 2, sampling(top_k=5))
