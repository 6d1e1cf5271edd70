# SPDX-License-Identifier: Apache-2.0
"""What an engine must not return, and sampling settings that cannot be meant."""

import math

import pytest
import torch
from naming import raises_naming

from minimind_hf.rollout import Rollout, SamplingParams, check_engine, check_episodes, check_rollouts


def good() -> Rollout:
    return Rollout([3, 4, 2], [-0.5, -1.0, -0.1], "stop")


BAD = [
    (["tokens", "EOS"], Rollout([], [], "stop")),
    ([2, "log-probabilities", 3, "tokens"], Rollout([3, 4, 2], [-0.5, -1.0], "stop")),
    (["loss_mask", 1, 3], Rollout([3, 4, 2], [-0.5, -1.0, -0.1], "stop", loss_mask=[1])),
    (["token ids", 40, 10], Rollout([3, 40, 2], [-0.5, -1.0, -0.1], "stop")),
    (["token ids", -1, 10], Rollout([-1, 4, 2], [-0.5, -1.0, -0.1], "stop")),
    (["finish_reason", "'done'", "'stop'"], Rollout([3, 4, 2], [-0.5, -1.0, -0.1], "done")),
    (["log-probabilities", "nan", "token 1"], Rollout([3, 4, 2], [-0.5, math.nan, -0.1], "stop")),
    (["log-probabilities", "-inf", "token 2"], Rollout([3, 4, 2], [-0.5, -0.1, -math.inf], "stop")),
    ([5, "max_completion_length=4"], Rollout([3, 4, 5, 6, 2], [-0.5] * 5, "stop")),
    (["log-probabilities", 0.7, "token 1"], Rollout([3, 4, 2], [-0.5, 0.7, -0.1], "stop")),
    (["dict", "Rollout"], {"completion_ids": [3]}),
    (["completion_ids", "Tensor", "list"], Rollout(torch.tensor([3, 4, 2]), [-0.5, -1.0, -0.1], "stop")),
    (["completion_ids", "float", "int"], Rollout([3, 4.0, 2], [-0.5, -1.0, -0.1], "stop")),
    (["logprobs", "NoneType", "list"], Rollout([3, 4, 2], None, "stop")),
    (["logprobs", "NoneType", "float"], Rollout([3, 4, 2], [-0.5, None, -0.1], "stop")),
    (["loss_mask", "[2]"], Rollout([3, 4, 2], [-0.5, -1.0, -0.1], "stop", loss_mask=[1, 2, 1])),
    (["weights_version", None], Rollout([3, 4, 2], [-0.5, -1.0, -0.1], "stop", weights_version=None)),
]


class MyEngine:
    pass


@pytest.mark.parametrize(("named", "rollout"), BAD, ids=[" ".join(map(str, named)) for named, _ in BAD])
def test_a_bad_completion_is_refused_by_engine_index_and_fault(named, rollout):
    with raises_naming(ValueError, "MyEngine", "index 1", *named):
        check_rollouts([good(), rollout], 2, 10, MyEngine(), 4)


@pytest.mark.parametrize(
    ("rollouts", "found"), [([], 0), ([good()], 1), (None, "NoneType"), ((good(), good()), "tuple")]
)
def test_a_wrong_number_is_refused(rollouts, found):
    with raises_naming(ValueError, "MyEngine", found, "list", 2):
        check_rollouts(rollouts, 2, 10, MyEngine())


def test_log_probabilities_of_tool_output_are_not_looked_at():
    rollout = Rollout([3, 4, 2], [-0.5, math.nan, -0.1], "stop", loss_mask=[1, 0, 1])
    check_rollouts([good(), rollout], 2, 10, MyEngine())


def episode() -> Rollout:
    return Rollout([3, 4, 7, 7, 7, 7, 5, 2], [-0.5] * 8, "stop", loss_mask=[1, 1, 0, 0, 0, 0, 1, 1])


def test_what_an_engine_answers_by_itself_may_be_longer_than_a_turn():
    check_rollouts([episode()], 1, 10, MyEngine(), 2)
    with raises_naming(ValueError, "MyEngine", "index 0", 2, "max_completion_length=1"):
        check_rollouts([episode()], 1, 10, MyEngine(), 1)


def test_a_whole_episode_and_each_of_its_turns_have_a_length():
    def check(whole, turn, rollouts=None, sessions=1):
        check_episodes(
            rollouts or [episode()], sessions, 10, MyEngine(), SamplingParams(whole, 1.0, (2,), max_turn_length=turn)
        )

    check(8, 2)
    check(8, None)
    with raises_naming(ValueError, "MyEngine", "index 0", 8, "max_completion_length=7"):
        check(7, 2)
    with raises_naming(ValueError, "MyEngine", "index 0", 2, "max_turn_length=1"):
        check(8, 1)
    with raises_naming(ValueError, "MyEngine", 1, 2, "session"):
        check(8, 2, sessions=2)
    with raises_naming(ValueError, "MyEngine", "index 1", "finish_reason", "'done'"):
        check(8, 2, [episode(), Rollout([3], [-1.0], "done")], sessions=2)


def test_turns_are_the_runs_that_the_policy_chose():
    rollout = Rollout([3, 4, 7, 7, 5, 2, 8], [0.0] * 7, "stop", loss_mask=[1, 1, 0, 0, 1, 1, 0])
    assert rollout.turns == [(0, 2), (4, 6)]
    assert good().turns == [(0, 3)]


def test_a_turn_has_at_least_a_token():
    with raises_naming(ValueError, "max_turn_length", 0, 1):
        SamplingParams(5, 1.0, (2,), max_turn_length=0)


@pytest.mark.parametrize("changes", [{"temperature": 0}, {"temperature": -1}, {"temperature": math.nan}])
def test_temperature_must_be_above_0(changes):
    with raises_naming(ValueError, "temperature", changes["temperature"], "greedy=True"):
        SamplingParams(**{"max_completion_length": 5, "temperature": 1.0, "eos_token_ids": (2,)} | changes)


def test_an_object_that_is_no_engine_is_refused_by_what_it_lacks():
    with raises_naming(TypeError, "MyEngine", "generate", "sync_weights"):
        check_engine(MyEngine())
    with raises_naming(TypeError, "rollout_engine", "class MyEngine", "MyEngine()"):
        check_engine(MyEngine)
