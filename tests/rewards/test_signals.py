# SPDX-License-Identifier: Apache-2.0
"""Rewards by turn: what functions may return for a completion of several turns, and how it adds up."""

import math

import numpy as np
import pytest
import torch
from naming import raises_naming

from minimind_hf.rewards import RewardError, RewardScorer
from minimind_hf.rewards.rules import completion_text

TURNS = [2, 1, 3]
GIVEN = {"prompts": ["p"] * 3, "completions": ["a", "b", "c"], "completion_ids": [[1]] * 3, "columns": {}}


def scored(functions, weights=None, **extra):
    return RewardScorer(functions, weights).score(**GIVEN, num_turns=TURNS, **extra)


def by_turn(num_turns, **_):
    return [[float(turn + 1) for turn in range(count)] for count in num_turns]


def whole(completions, **_):
    return [10.0, None, 30.0]


def test_rewards_by_turn_add_up_beside_rewards_of_completions():
    signals = scored([by_turn, whole, lambda completions, **_: [[0.5, None], 4.0, None]], [2.0, 1.0, 0.5])
    expected = torch.tensor([[3.0, 10.0, 0.5], [1.0, math.nan, 4.0], [6.0, 30.0, math.nan]])
    torch.testing.assert_close(signals.values, expected, equal_nan=True)
    # 2 x (1, 2) + (0, 10) + 0.5 x (0.5, 0); 2 x 1 + 0.5 x 4; 2 x (1, 2, 3) + (0, 0, 30).
    assert signals.turn_totals([2.0, 1.0, 0.5], TURNS) == [[2.25, 14.0], [4.0], [2.0, 4.0, 36.0]]
    assert signals.turn_totals([0.0, 1.0, 0.0], TURNS) == [[0.0, 10.0], [0.0], [0.0, 0.0, 30.0]]
    assert set(signals.by_turn) == {0, 2}


def test_calling_a_scorer_still_returns_sums():
    scorer = RewardScorer([by_turn, whole])
    assert scorer(**GIVEN, num_turns=TURNS)[:, 0].tolist() == [3.0, 1.0, 6.0]
    assert scored([whole]).by_turn == {}


@pytest.mark.parametrize("kind", [tuple, np.array, torch.tensor])
def test_turns_may_be_arrays(kind):
    signals = scored([lambda num_turns, **_: [kind([0.5] * count) for count in num_turns]])
    assert signals.values[:, 0].tolist() == [1.0, 0.5, 1.5]


def test_wrong_numbers_of_turns_are_named():
    def off_by_one(num_turns, **_):
        return [[0.0] * num_turns[0], [0.0], [0.0] * 2]

    with raises_naming(RewardError, "off_by_one", "sample 2", "2 rewards", "3 turns", "num_turns"):
        scored([off_by_one])
    with raises_naming(RewardError, "one_turn", "sample 0", "2 rewards", "1 turns"):

        def one_turn(completions, **_):
            return [[1.0, 2.0]] * 3

        RewardScorer([one_turn])(**GIVEN)
    with raises_naming(RewardError, "text", "'x'", "sample 0"):

        def text(completions, **_):
            return [["x", 1.0], 1.0, 1.0]

        scored([text])
    with raises_naming(RewardError, "huge", "finite", "sample 0"):

        def huge(completions, **_):
            return [[3e38, 3e38], 1.0, 1.0]

        scored([huge])


def test_environments_reach_the_functions_that_ask():
    seen = []

    def asks(environments, num_turns, **_):
        seen.append((environments, num_turns))
        return [0.0] * 3

    games = [object(), None, object()]
    scored([asks], environments=games)
    assert seen == [(games, TURNS)]


def test_text_of_an_episode_is_that_of_the_policy():
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "12"},
        {"role": "assistant", "content": "It is 12."},
    ]
    assert completion_text(messages) == "\nIt is 12."
    assert completion_text(messages[2:]) == "It is 12."
