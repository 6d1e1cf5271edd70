# SPDX-License-Identifier: Apache-2.0
"""Advantages of turns: against a loop, by hand, and unbiased on a bandit whose groups can be enumerated."""

import itertools
import math

import pytest
import torch
from naming import raises_naming

from minimind_hf.algorithms import (
    gae,
    group_advantages,
    rloo_advantages,
    spread_over_turns,
    token_rewards,
    turn_advantages,
    turn_numbers,
)

NAN = float("nan")


def padded(turns):
    width = max(map(len, turns), default=0)
    rewards = torch.tensor([[*row, *[99.0] * (width - len(row))] for row in turns], dtype=torch.float64)
    return rewards.view(len(turns), width), torch.tensor([len(row) for row in turns])


def loop(turns, num_generations, discount):
    """The definition, episode by episode."""
    returns = [[sum(r * discount**k for k, r in enumerate(row[t:])) for t in range(len(row))] for row in turns]
    out = []
    for i, row in enumerate(turns):
        start = i - i % num_generations
        others = [
            returns[j]
            for j in range(start, start + num_generations)
            if j != i and turns[j] and not any(map(math.isnan, turns[j]))
        ]
        counts = bool(others) and not any(map(math.isnan, row))
        out.append(
            [
                returns[i][t] - sum(g[min(t, len(g) - 1)] for g in others) / len(others) if counts else 0.0
                for t in range(len(row))
            ]
        )
    return out


@pytest.mark.parametrize("discount", [1.0, 0.7])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_equals_the_loop_over_ragged_episodes(size, discount):
    generator = torch.Generator().manual_seed(7)
    lengths = torch.randint(0, 5, (4 * size,), generator=generator).tolist()
    turns = [torch.randn(length, generator=generator, dtype=torch.float64).tolist() for length in lengths]
    for left_out in (1, 4 * size - 1):
        turns[left_out] = [*turns[left_out], NAN]
    found = turn_advantages(*padded(turns), size, discount)
    for row, expected in zip(found.tolist(), loop(turns, size, discount), strict=True):
        assert row[: len(expected)] == pytest.approx(expected, abs=1e-12)
        assert not any(row[len(expected) :])


def test_by_hand():
    # Rewards-to-go with discount 1: [3, 2], [5], [-5, 0, 4]. Second turn of the first: 2 - (5 + 0) / 2 = -0.5.
    found = turn_advantages(*padded([[1, 2], [5], [-5, -4, 4]]), 3)
    expected = torch.tensor([[3 - 0.0, 2 - 2.5, 0], [5 - (3 - 5) / 2, 0, 0], [-5 - 4, 0 - 3.5, 4 - 3.5]])
    torch.testing.assert_close(found, expected.double(), rtol=0, atol=1e-12)


BANDIT = {"go_on": 0.3, "two": -0.4, "stop_reward": 0.7, "on_reward": 0.2, "second": (-1.0, 2.0)}
EXACT = [-0.0723750563, 0.4140479624]
BIASED = [-0.0482500376, 0.1923036577]


def bandit_mean(advantages_of, size=3):
    """The estimator's mean over all groups of the bandit: gradients by both logits, averaged over the episodes."""
    on, two = (1 / (1 + math.exp(-BANDIT[name])) for name in ("go_on", "two"))
    # Probability, rewards by turn, and d log p / d logit of each turn's action.
    low, high = BANDIT["second"]
    episodes = [
        (1 - on, [BANDIT["stop_reward"]], [-on]),
        (on * (1 - two), [BANDIT["on_reward"], low], [1 - on, -two]),
        (on * two, [BANDIT["on_reward"], high], [1 - on, 1 - two]),
    ]
    total = [0.0, 0.0]
    for group in itertools.product(episodes, repeat=size):
        probability = math.prod(p for p, _, _ in group)
        advantages = advantages_of([rewards for _, rewards, _ in group], size)
        for row, (_, _, slopes) in zip(advantages, group, strict=True):
            for turn, slope in enumerate(slopes):
                total[turn] += probability * row[turn] * slope / size
    return total


def mean_per_turn_index(turns, size):
    """The usual shortcut: each turn against all others that reach this turn."""
    returns = [[sum(row[t:]) for t in range(len(row))] for row in turns]
    out = []
    for i, own in enumerate(returns):
        out.append([])
        for t, value in enumerate(own):
            others = [g[t] for j, g in enumerate(returns) if j != i and len(g) > t]
            out[-1].append(value - sum(others) / len(others) if others else 0.0)
    return out


def test_is_unbiased_on_a_bandit_of_two_turns():
    found = bandit_mean(lambda turns, size: turn_advantages(*padded(turns), size).tolist())
    assert found == pytest.approx(EXACT, abs=1e-10)


def test_the_mean_of_the_same_turn_is_biased_there():
    found = bandit_mean(mean_per_turn_index)
    assert abs(found[1] - EXACT[1]) > 0.01


@pytest.mark.parametrize("size", [2, 4])
def test_a_reward_on_the_last_turn_alone_is_leave_one_out(size):
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, 5, (3 * size,), generator=generator)
    totals = torch.randn(3 * size, generator=generator, dtype=torch.float64)
    totals[1] = NAN
    turns = [[0.0] * (length - 1) + [total] for length, total in zip(lengths.tolist(), totals.tolist(), strict=True)]
    found = turn_advantages(*padded(turns), size)
    expected = rloo_advantages(totals, size)
    for row, length, value in zip(found, lengths, expected, strict=True):
        assert row[:length].tolist() == [value] * length and not row[length:].any()

    # And the scales are those of the group's estimator, with G / (G - 1) for the mean of the others.
    totals[1] = 0.3
    turns[1][-1] = 0.3
    for scale in ("group", "batch", "none"):
        scaled = turn_advantages(*padded(turns), size, scale_rewards=scale)[:, 0]
        plain = group_advantages(totals, size, scale) * size / (size - 1)
        torch.testing.assert_close(scaled, plain, rtol=1e-12, atol=1e-12)


def test_scales_have_one_divisor_for_all_turns_of_a_group():
    turns = [[1, 2], [5], [-5, -4, 4], [0, 0], [0, 1], [2]]
    raw = turn_advantages(*padded(turns), 3)
    for scale in ("group", "batch"):
        ratios = turn_advantages(*padded(turns), 3, scale_rewards=scale, eps=0.0) / raw
        for group in (ratios[:3], ratios[3:]):
            known = group[~group.isnan()]
            torch.testing.assert_close(known, known[:1].expand_as(known))
    # Rewards-to-go of the second group, by turn: (0, 1, 2) and (0, 1, 2); their population variance is 2 / 3.
    scaled = turn_advantages(*padded(turns), 3, scale_rewards="group", eps=0.0)
    assert scaled[3].tolist() == pytest.approx([-1.5 / (2 / 3) ** 0.5] * 2 + [0])
    # Equal totals with different turns are no reason to divide by 0: here the second turns differ.
    finite = turn_advantages(*padded([[1, 0], [0, 1]]), 2, scale_rewards="group")
    size = 1 / 0.125**0.5
    assert finite.tolist() == [[0, pytest.approx(-size, rel=1e-3)], [0, pytest.approx(size, rel=1e-3)]]


def test_one_counted_episode_and_none():
    assert not turn_advantages(*padded([[1, 2], [NAN]]), 2).any()
    assert not turn_advantages(*padded([[NAN], [NAN]]), 2, scale_rewards="group").any()
    assert turn_advantages(*padded([[], []]), 2, scale_rewards="batch").shape == (2, 0)
    large = turn_advantages(torch.tensor([[3e38], [-3e38]]), torch.tensor([1, 1]), 2, scale_rewards="group")
    assert large.tolist() == [[2.0], [-2.0]]


def test_refusals():
    rewards = torch.zeros(4, 2)
    with raises_naming(ValueError, "rewards", "(4, 2)", "(3,)"):
        turn_advantages(rewards, torch.tensor([1, 2, 1]), 2)
    with raises_naming(ValueError, "scale_rewards", "std"):
        turn_advantages(rewards, torch.tensor([1, 2, 1, 2]), 2, scale_rewards="std")
    with raises_naming(ValueError, "num_generations", 3):
        turn_advantages(rewards, torch.tensor([1, 2, 1, 2]), 3)
    with raises_naming(ValueError, "values", "(4,)", "(4, 5)"):
        spread_over_turns(torch.zeros(4), torch.ones(4, 5))
    with raises_naming(ValueError, "rewards", "(3, 2)", "(4, 5)"):
        token_rewards(torch.zeros(3, 2), torch.ones(4, 5))


MASK = torch.tensor([[1, 1, 0, 0, 1, 0, 1, 1], [1, 1, 1, 0, 0, 0, 0, 0], [0] * 8])


def test_tokens_of_turns():
    assert turn_numbers(MASK).tolist() == [[0, 0, 0, 0, 1, 1, 2, 2], [0] * 8, [0] * 8]
    values = torch.tensor([[1.0, 2.0, 3.0], [4.0, NAN, NAN], [NAN, NAN, NAN]])
    spread = spread_over_turns(values, MASK)
    assert spread.tolist() == [[1, 1, 0, 0, 2, 0, 3, 3], [4, 4, 4, 0, 0, 0, 0, 0], [0] * 8]
    placed = token_rewards(values, MASK)
    assert placed.tolist() == [[0, 1, 0, 0, 2, 0, 0, 3], [0, 0, 4, 0, 0, 0, 0, 0], [0] * 8]
    # One turn with a reward is the plain case.
    whole = torch.tensor([0.5, -1.0, 2.0])
    one = MASK * torch.tensor([[1, 1, 0, 0, 0, 0, 0, 0]]) + 0
    torch.testing.assert_close(token_rewards(whole[:, None], one), token_rewards(whole, one))


def test_gae_passes_over_an_observation():
    # Tokens 0 and 1, an observation with absurd values, token 4. The rewards of the turns are 1 and 2.
    mask = torch.tensor([[1, 1, 0, 0, 1, 0]])
    rewards = token_rewards(torch.tensor([[1.0, 2.0]], dtype=torch.float64), mask)
    values = torch.tensor([[0.1, 0.2, 1e9, NAN, 0.4, NAN]], dtype=torch.float64)
    advantages, returns = gae(rewards, values, mask, gamma=0.5, lam=0.5)
    third = 2 - 0.4
    second = (1 + 0.5 * 0.4 - 0.2) + 0.25 * third
    first = (0 + 0.5 * 0.2 - 0.1) + 0.25 * second
    assert advantages[0].tolist() == pytest.approx([first, second, 0, 0, third, 0])
    assert returns[0].tolist() == pytest.approx([first + 0.1, second + 0.2, 0, 0, 2.0, 0])


def test_gae_with_observations_equals_gae_without_them():
    generator = torch.Generator().manual_seed(1)
    mask = torch.rand(6, 20, generator=generator) < 0.6
    rewards, values = torch.randn(2, 6, 20, generator=generator, dtype=torch.float64).unbind()
    advantages, returns = gae(rewards * mask, values, mask, 0.9, 0.8)
    for row in range(6):
        kept, following, value = [], 0.0, 0.0
        tokens = zip(rewards[row, mask[row]].tolist(), values[row, mask[row]].tolist(), strict=True)
        for r, v in reversed(list(tokens)):
            following = r + 0.9 * value - v + 0.9 * 0.8 * following
            kept.insert(0, following)
            value = v
        assert advantages[row, mask[row]].tolist() == pytest.approx(kept, abs=1e-12)
        assert not advantages[row, ~mask[row]].any() and not returns[row, ~mask[row]].any()
