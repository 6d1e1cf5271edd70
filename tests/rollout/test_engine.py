# SPDX-License-Identifier: Apache-2.0
"""What an engine must not return, and sampling settings that cannot be meant."""

import math

import pytest
import torch

from minimind_hf.rollout import Rollout, SamplingParams, check_engine, check_rollouts


def good() -> Rollout:
    return Rollout([3, 4, 2], [-0.5, -1.0, -0.1], "stop")


BAD = {
    "no tokens": Rollout([], [], "stop"),
    "2 log-probabilities for 3 tokens": Rollout([3, 4, 2], [-0.5, -1.0], "stop"),
    "loss_mask of 1 for 3 tokens": Rollout([3, 4, 2], [-0.5, -1.0, -0.1], "stop", loss_mask=[1]),
    "vocabulary of 10": Rollout([3, 40, 2], [-0.5, -1.0, -0.1], "stop"),
    "token ids from -1": Rollout([-1, 4, 2], [-0.5, -1.0, -0.1], "stop"),
    "finish_reason 'done'": Rollout([3, 4, 2], [-0.5, -1.0, -0.1], "done"),
    "log-probabilities.*nan, of token 1": Rollout([3, 4, 2], [-0.5, math.nan, -0.1], "stop"),
    "-inf, of token 2": Rollout([3, 4, 2], [-0.5, -0.1, -math.inf], "stop"),
    "5 tokens.*max_completion_length=4": Rollout([3, 4, 5, 6, 2], [-0.5] * 5, "stop"),
    "finite numbers of at most 0": Rollout([3, 4, 2], [-0.5, 0.7, -0.1], "stop"),
    "a dict, not a Rollout": {"completion_ids": [3]},
    "its completion_ids are a Tensor, not a list": Rollout(torch.tensor([3, 4, 2]), [-0.5, -1.0, -0.1], "stop"),
    "its completion_ids hold values of type float": Rollout([3, 4.0, 2], [-0.5, -1.0, -0.1], "stop"),
    "its logprobs are a NoneType": Rollout([3, 4, 2], None, "stop"),
    "its logprobs hold values of type NoneType": Rollout([3, 4, 2], [-0.5, None, -0.1], "stop"),
    "a loss_mask with .2.": Rollout([3, 4, 2], [-0.5, -1.0, -0.1], "stop", loss_mask=[1, 2, 1]),
    "weights_version None": Rollout([3, 4, 2], [-0.5, -1.0, -0.1], "stop", weights_version=None),
}


class MyEngine:
    pass


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_completion_is_refused_by_engine_index_and_fault(fault):
    with pytest.raises(ValueError, match=f"MyEngine.*index 1.*{fault}"):
        check_rollouts([good(), BAD[fault]], 2, 10, MyEngine(), 4)


@pytest.mark.parametrize("rollouts", [[], [good()], None, (good(), good())])
def test_a_wrong_number_is_refused(rollouts):
    with pytest.raises(ValueError, match="MyEngine returned .* expected a list of 2"):
        check_rollouts(rollouts, 2, 10, MyEngine())


def test_log_probabilities_of_tool_output_are_not_looked_at():
    rollout = Rollout([3, 4, 2], [-0.5, math.nan, -0.1], "stop", loss_mask=[1, 0, 1])
    check_rollouts([good(), rollout], 2, 10, MyEngine())


def test_answers_of_tools_may_be_longer_than_a_turn():
    turns = Rollout([3, 4, 7, 7, 7, 7, 5, 2], [-0.5] * 8, "stop", loss_mask=[1, 1, 0, 0, 0, 0, 1, 1])
    check_rollouts([turns], 1, 10, MyEngine(), 2)
    with pytest.raises(ValueError, match="2 tokens.*max_completion_length=1"):
        check_rollouts([turns], 1, 10, MyEngine(), 1)


@pytest.mark.parametrize("changes", [{"temperature": 0}, {"temperature": -1}, {"temperature": math.nan}])
def test_temperature_must_be_above_0(changes):
    with pytest.raises(ValueError, match="temperature"):
        SamplingParams(**{"max_completion_length": 5, "temperature": 1.0, "eos_token_ids": (2,)} | changes)


def test_an_object_that_is_no_engine_is_refused_by_what_it_lacks():
    with pytest.raises(TypeError, match="MyEngine, which has no generate and no sync_weights"):
        check_engine(MyEngine())
    with pytest.raises(TypeError, match="rollout_engine.*class MyEngine.*instance"):
        check_engine(MyEngine)
