# SPDX-License-Identifier: Apache-2.0
"""Rewards with missing signals, group advantages, GAE and whitening against hand-derived values and plain loops."""

import math

import pytest
import torch

from minimind_hf.algorithms import (
    decoupled_advantages,
    gae,
    group_advantages,
    masked_whiten,
    mean_var_from_moments,
    moments,
    token_rewards,
    total_rewards,
    zero_variance_groups,
)

NAN = float("nan")


def same(actual: torch.Tensor, expected: list[float], tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(
        actual, torch.tensor(expected, dtype=actual.dtype), rtol=tolerance, atol=tolerance, equal_nan=True
    )


# --- total rewards ---------------------------------------------------------------------------------------------


def test_weighted_sum():
    signals = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    same(total_rewards(signals, [0.5, 2.0], 2), [0.5 + 4.0, 1.5 - 2.0])


def test_a_signal_that_scored_nobody_in_the_group_does_not_apply_to_it():
    # Signal 1 scored nobody in the first group, everybody in the second.
    signals = torch.tensor([[1.0, NAN], [2.0, NAN], [1.0, 10.0], [2.0, 20.0]])
    same(total_rewards(signals, [1.0, 1.0], 2), [1.0, 2.0, 11.0, 22.0])


def test_a_completion_that_alone_was_not_scored_is_left_out():
    # Without its second signal, completion 1 would look worse than completion 0 by 5 that nobody took away.
    signals = torch.tensor([[1.0, 5.0], [1.0, NAN], [2.0, 6.0]])
    same(total_rewards(signals, [1.0, 1.0], 3), [6.0, NAN, 8.0])


def test_a_group_that_no_signal_scored_is_left_out():
    signals = torch.tensor([[NAN, NAN], [NAN, NAN], [0.0, NAN], [1.0, NAN]])
    same(total_rewards(signals, [1.0, 1.0], 2), [NAN, NAN, 0.0, 1.0])


def test_the_only_signal_missing_once_leaves_that_one_out():
    same(total_rewards(torch.tensor([[1.0], [NAN]]), [1.0], 2), [1.0, NAN])


def test_groups_do_not_mix():
    # Row 2 is the only one of its group with signal 0: it keeps its reward, row 3 is left out, group 0 is untouched.
    signals = torch.tensor([[NAN, 1.0], [NAN, 2.0], [3.0, 1.0], [NAN, 1.0]])
    same(total_rewards(signals, [1.0, 1.0], 2), [1.0, 2.0, 4.0, NAN])


def test_a_signal_of_weight_zero_leaves_nobody_out():
    signals = torch.tensor([[1.0, 7.0], [2.0, NAN]])
    same(total_rewards(signals, torch.tensor([1.0, 0.0]), 2), [1.0, 2.0])


@pytest.mark.parametrize("rows", [1, 6, 33])
def test_equal_signals_give_bitwise_equal_rewards(rows):
    signals = torch.tensor([0.1, 0.3, -0.7, 1e-3, 2.3]).repeat(rows, 1)
    totals = total_rewards(signals, [0.1, 0.9, 1.1, 3.0, 0.7], rows)
    assert (totals == totals[0]).all()


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="weights"):
        total_rewards(torch.ones(4, 2), [1.0], 2)
    with pytest.raises(ValueError, match="5 completions.*num_generations=2"):
        total_rewards(torch.ones(5, 2), [1.0, 1.0], 2)
    with pytest.raises(ValueError, match="num_generations=4"):
        group_advantages(torch.ones(6), 4)


# --- group advantages ------------------------------------------------------------------------------------------


def loop_group_advantages(rewards: list[float], size: int, scale: str, eps: float = 1e-4) -> list[float]:
    def std(numbers: list[float]) -> float:
        mean = sum(numbers) / len(numbers)
        return math.sqrt(sum((number - mean) ** 2 for number in numbers) / len(numbers))

    everyone = [reward for reward in rewards if not math.isnan(reward)]
    advantages = []
    for start in range(0, len(rewards), size):
        group = rewards[start : start + size]
        kept = [reward for reward in group if not math.isnan(reward)]
        silent = len(kept) < 2 or max(kept) == min(kept)
        for reward in group:
            if silent or math.isnan(reward):
                advantages.append(0.0)
                continue
            divisor = {"group": std(kept) + eps, "batch": std(everyone) + eps, "none": 1.0}[scale]
            advantages.append((reward - sum(kept) / len(kept)) / divisor)
    return advantages


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_a_loop(scale, seed):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(30, generator=generator, dtype=torch.float64).mul(2).round(decimals=1)
    rewards[torch.rand(30, generator=generator) < 0.25] = NAN
    rewards[:5] = 0.3
    rewards[5:9] = NAN
    expected = loop_group_advantages(rewards.tolist(), 5, scale)
    same(group_advantages(rewards, 5, scale), expected, tolerance=1e-12)


def test_a_left_out_completion_changes_nothing_for_the_others():
    with_it = group_advantages(torch.tensor([1.0, NAN, 2.0, 4.0]), 4)
    without = group_advantages(torch.tensor([1.0, 2.0, 4.0]), 3)
    assert with_it[1] == 0
    assert with_it[[0, 2, 3]].tolist() == without.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("value", [0.1, 0.7, -1.3, 1e-8, 123456.789])
@pytest.mark.parametrize("size", [1, 3, 6, 7])
def test_equal_rewards_give_exactly_zero(dtype, scale, value, size):
    # The second group varies, so that a batch std exists.
    rewards = torch.tensor([value] * size + [float(i) for i in range(size)], dtype=dtype)
    assert group_advantages(rewards, size, scale)[:size].tolist() == [0.0] * size


def test_the_trap_that_the_equality_test_guards_against():
    # The float64 mean of six times 0.1 is not 0.1.
    rewards = torch.full((6,), 0.1, dtype=torch.float64)
    assert rewards.sum() / 6 != 0.1
    assert group_advantages(rewards, 6, "none").tolist() == [0.0] * 6


@pytest.mark.parametrize("scale", ["group", "batch"])
@pytest.mark.parametrize("size", [1e6, 1e19, 1e25, 3e38])
def test_rewards_whose_squares_float32_cannot_hold(scale, size):
    rewards = torch.tensor([-1.0, 0.5, 1.0, NAN, 0.25, 0.5]) * size
    expected = loop_group_advantages(rewards.tolist(), 3, scale)
    same(group_advantages(rewards, 3, scale), expected, tolerance=1e-6)
    signals = torch.stack([rewards, torch.zeros(6)], dim=1)
    ordinary = decoupled_advantages(signals / size, [1.0, 1.0], 3, eps=0.0)
    same(decoupled_advantages(signals, [1.0, 1.0], 3, eps=0.0), ordinary.tolist(), tolerance=1e-6)


def test_counting_in_units_changes_no_digit():
    rewards = torch.randn(600, generator=torch.Generator().manual_seed(0)) * 1000
    groups = rewards.view(-1, 6)
    centred = groups - groups.sum(dim=1, keepdim=True) / 6
    expected = centred / ((centred**2).sum(dim=1, keepdim=True) / 6).sqrt().add(1e-4)
    assert torch.equal(group_advantages(rewards, 6), expected.view(-1))
    assert torch.equal(group_advantages(rewards, 6, "none"), centred.view(-1))


def test_one_remaining_or_none_gives_zero():
    assert group_advantages(torch.tensor([NAN, 3.0, NAN, NAN]), 2).tolist() == [0.0] * 4


def test_scale_by_batch_by_hand():
    # All rewards 0, 2, 4, 4: mean 2.5, variance (6.25 + 0.25 + 2.25 + 2.25) / 4 = 2.75.
    advantages = group_advantages(torch.tensor([0.0, 2.0, 4.0, 4.0]), 2, "batch", eps=0.0)
    same(advantages, [-1 / math.sqrt(2.75), 1 / math.sqrt(2.75), 0.0, 0.0])


def test_unknown_scale_is_refused():
    with pytest.raises(ValueError, match="scale_rewards.*'sigma'"):
        group_advantages(torch.ones(2), 2, "sigma")


def test_zero_variance_groups():
    rewards = torch.tensor([0.1, 0.1, 0.1, 1.0, 2.0, 1.0, NAN, 5.0, NAN, 2.0, NAN, 2.0, NAN, 2.0, 3.0])
    assert zero_variance_groups(rewards, 3).tolist() == [True, False, True, True, False]


# --- GAE -------------------------------------------------------------------------------------------------------


def loop_gae(rewards, values, mask, gamma, lam):
    advantages = torch.zeros_like(values)
    for row in range(len(mask)):
        next_value = next_advantage = 0.0
        for t in reversed(range(mask.shape[1])):
            if not mask[row, t]:
                continue
            delta = rewards[row, t] + gamma * next_value - values[row, t]
            next_advantage = advantages[row, t] = delta + gamma * lam * next_advantage
            next_value = values[row, t]
    return advantages, torch.where(mask, advantages + values, 0.0)


@pytest.mark.parametrize("gamma, lam", [(1.0, 0.95), (0.99, 0.9), (1.0, 1.0), (0.9, 0.0), (0.0, 0.5)])
@pytest.mark.parametrize("width", [1, 2, 8, 13])
def test_gae_agrees_with_a_loop(gamma, lam, width):
    generator = torch.Generator().manual_seed(width)
    rewards, values = torch.randn(2, 9, width, generator=generator, dtype=torch.float64).unbind()
    mask = torch.rand(9, width, generator=generator) > 0.35
    mask[0], mask[1] = True, False
    expected = loop_gae(rewards, values, mask, gamma, lam)
    spoiled = [x.masked_fill(~mask, NAN) for x in (rewards, values)]
    for actual, wanted in zip(gae(*spoiled, mask, gamma, lam), expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-12, atol=1e-12)


def test_gae_over_a_long_row_in_float32():
    # With V = 0, gamma = 1 and a reward of 1 at the end, A_t = lam^(T - 1 - t).
    width, lam = 2048, 0.999
    rewards = torch.zeros(1, width)
    rewards[0, -1] = 1.0
    advantages, _ = gae(rewards, torch.zeros(1, width), torch.ones(1, width), 1.0, lam)
    expected = lam ** torch.arange(width - 1, -1, -1, dtype=torch.float64)
    torch.testing.assert_close(advantages[0].double(), expected, rtol=0, atol=1e-5)


def test_a_hole_such_as_a_tool_turn_is_stepped_over():
    rewards = torch.tensor([[0.0, 9.0, 9.0, 1.0]])
    values = torch.tensor([[0.5, 99.0, NAN, 0.25]])
    mask = torch.tensor([[1, 0, 0, 1]])
    advantages, returns = gae(rewards, values, mask, gamma=0.5, lam=0.5)
    # A_3 = 1 - 0.25 = 0.75; A_0 = 0.5 * 0.25 - 0.5 + 0.25 * 0.75 = -0.1875
    same(advantages, [[-0.1875, 0.0, 0.0, 0.75]])
    same(returns, [[0.3125, 0.0, 0.0, 1.0]])


def test_gae_of_nothing():
    empty = torch.zeros(2, 0)
    assert [x.shape for x in gae(empty, empty, empty, 1.0, 0.95)] == [(2, 0)] * 2


def test_gae_refuses_other_shapes():
    with pytest.raises(ValueError, match="`values`"):
        gae(torch.zeros(2, 3), torch.zeros(2, 4), torch.ones(2, 3), 1.0, 0.95)


def test_token_rewards_sit_on_the_last_valid_token():
    mask = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
    placed = token_rewards(torch.tensor([1.5, -2.0, NAN, 3.0], dtype=torch.float64), mask)
    assert placed.dtype == torch.float64
    assert placed.tolist() == [[0, 1.5, 0, 0], [0, 0, -2.0, 0], [0, 0, 0, 0], [0, 0, 0, 3.0]]
    with pytest.raises(ValueError, match=r"rewards.*\(3,\)"):
        token_rewards(torch.zeros(3), mask)


# --- whitening -------------------------------------------------------------------------------------------------


def test_whitening_by_parts_equals_whitening_the_whole():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 5, generator=generator) * 3 + 100
    mask = torch.rand(8, 5, generator=generator) > 0.4
    x[~mask] = NAN
    parts = list(zip(x.split([1, 3, 4]), mask.split([1, 3, 4]), strict=True))
    mean, var = mean_var_from_moments(sum(moments(*part) for part in parts))
    by_parts = torch.cat([masked_whiten(*part, mean=mean, var=var) for part in parts])
    assert by_parts.dtype == torch.float32
    torch.testing.assert_close(by_parts, masked_whiten(x, mask), rtol=0, atol=1e-6)
    assert by_parts[mask].mean().abs() < 1e-5
    assert abs(by_parts[mask].std(unbiased=False) - 1) < 1e-5


def test_whitening_equal_values_gives_exactly_zero():
    # A mean that is off in the last digit would be divided by sqrt(1e-8).
    assert masked_whiten(torch.full((7, 143), 0.7), torch.ones(7, 143)).abs().max() == 0


def test_whitening_keeps_nan_out_of_the_gradient():
    x = torch.tensor([1.0, NAN, 3.0, 7.0], requires_grad=True)
    masked_whiten(x, torch.tensor([1, 0, 1, 1])).pow(3).sum().backward()
    assert x.grad.isfinite().all() and x.grad[1] == 0


def test_whitening_of_nothing_is_zero():
    assert masked_whiten(torch.full((2, 2), NAN), torch.zeros(2, 2)).tolist() == [[0, 0], [0, 0]]
    assert [x.item() for x in mean_var_from_moments(torch.zeros(3))] == [0, 0]


def test_half_of_the_moments_is_refused():
    with pytest.raises(ValueError, match="`mean` and `var`"):
        masked_whiten(torch.ones(2), torch.ones(2), mean=1.0)
