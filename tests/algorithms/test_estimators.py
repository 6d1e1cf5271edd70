# SPDX-License-Identifier: Apache-2.0
"""The table of advantage estimators: leave-one-out and baseline by hand, by a loop, and by trl's formula."""

import math

import pytest
import torch
from naming import raises_naming

from minimind_hf.algorithms import (
    ADVANTAGES,
    group_advantages,
    reinforce_baseline_advantages,
    rloo_advantages,
)

NAN = float("nan")


def random_rewards(groups: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(groups * size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_rloo_by_hand(dtype, close):
    # Of 1, 2, 6 the others' means are 4, 3.5, 1.5; of 0, 0, 3 they are 1.5, 1.5, 0.
    rewards = torch.tensor([1.0, 2.0, 6.0, 0.0, 0.0, 3.0], dtype=dtype)
    close(rloo_advantages(rewards, 3), [-3.0, -1.5, 4.5, -1.5, -1.5, 3.0])


@pytest.mark.parametrize("size", [2, 4, 7])
def test_rloo_by_the_formula_of_trl(size):
    """The baseline of trl's RLOOTrainer: (sum of the group - reward) / (G - 1)."""
    rewards = random_rewards(5, size)
    grouped = rewards.view(-1, size)
    baselines = (grouped.sum(dim=1, keepdim=True) - grouped) / (size - 1)
    expected = (grouped - baselines).view(-1)
    torch.testing.assert_close(rloo_advantages(rewards, size), expected, rtol=1e-12, atol=1e-12)


def test_rloo_leaves_out_what_has_no_reward(dtype, close):
    # The first group compares 1 and 3 alone; in the second only one is left, in the third none.
    rewards = torch.tensor([1.0, NAN, 3.0, NAN, 5.0, NAN, NAN, NAN, NAN], dtype=dtype)
    close(rloo_advantages(rewards, 3), [-2.0, 0.0, 2.0, *[0.0] * 6])


def test_baseline_by_hand(dtype, close):
    # Less their group's mean: -1, 1 and -3, 3; their variance is (1 + 1 + 9 + 9) / 4 = 5.
    rewards = torch.tensor([0.0, 2.0, 10.0, 16.0], dtype=dtype)
    expected = torch.tensor([-1.0, 1.0, -3.0, 3.0], dtype=dtype) / math.sqrt(5)
    close(reinforce_baseline_advantages(rewards, 2), expected)


@pytest.mark.parametrize("seed", range(3))
def test_baseline_agrees_with_a_loop(seed):
    size, rewards = 4, random_rewards(6, 4, seed)
    rewards[[1, 9, 10]] = NAN
    centred = []
    for start in range(0, len(rewards), size):
        group = [value for value in rewards[start : start + size].tolist() if not math.isnan(value)]
        mean = sum(group) / len(group)
        centred += [None if math.isnan(v) else v - mean for v in rewards[start : start + size].tolist()]
    kept = [value for value in centred if value is not None]
    mean = sum(kept) / len(kept)
    std = math.sqrt(sum((value - mean) ** 2 for value in kept) / len(kept) + 1e-8)
    expected = [0.0 if value is None else (value - mean) / std for value in centred]
    found = reinforce_baseline_advantages(rewards, size)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ADVANTAGES)
def test_equal_rewards_give_exactly_0_and_groups_do_not_mix(name):
    estimate = ADVANTAGES[name].estimate
    # In floating point the mean of six times 0.1 is not 0.1.
    rewards = torch.cat([torch.full((6,), 0.1), torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 1.0])])
    found = estimate(rewards, 6)
    assert found.shape == (12,) and found.dtype == rewards.dtype
    assert found[:6].tolist() == [0.0] * 6
    assert (found[6:9] < 0).all() and (found[9:] > 0).all()
    assert found.sum().abs() < 1e-5


@pytest.mark.parametrize("name", ADVANTAGES)
def test_a_split_group_is_refused(name):
    with raises_naming(ValueError, "num_generations=3"):
        ADVANTAGES[name].estimate(torch.zeros(4), 3)


def test_rloo_is_group_relative_up_to_its_factor():
    """`r - mean of the others` is `(r - mean of all) * G / (G - 1)`."""
    rewards = random_rewards(3, 5)
    expected = group_advantages(rewards, 5, "none") * 5 / 4
    torch.testing.assert_close(rloo_advantages(rewards, 5), expected, rtol=1e-12, atol=1e-12)
