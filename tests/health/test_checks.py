# SPDX-License-Identifier: Apache-2.0
"""Each rule on a curve that should make it speak, and on the nearest one that should not."""

import json
from pathlib import Path

import pytest

from minimind_hf.health import checks
from minimind_hf.health.checks import LIMITS, Curves
from minimind_hf.health.monitor import HealthMonitor
from minimind_hf.health.rules import NOT_FINITE, RULES

RECORDED = json.loads(Path(__file__).with_name("health_curves.json").read_text(encoding="utf-8"))


def curves(**metrics) -> Curves:
    """Curves of equal length; a single number is repeated."""
    length = max(len(values) for values in metrics.values() if isinstance(values, list))
    columns = {name.replace("__", "/"): v if isinstance(v, list) else [v] * length for name, v in metrics.items()}
    return Curves([{name: values[i] for name, values in columns.items()} for i in range(length)])


def noisy(mean: float, count: int, size: float = 0.1) -> list[float]:
    return [mean + size * ((7 * i) % 5 - 2) for i in range(count)]


def line(start: float, end: float, count: int) -> list[float]:
    return [start + (end - start) * i / (count - 1) for i in range(count)]


RISING = noisy(0.0, 20) + noisy(5.0, 20)

BAD = {
    "reward_constant": {"reward": [0.5] * 5, "reward_std": 0.0},
    "reward_negative": {"reward": noisy(-1.0, 20), "reward_std": 0.3, "reward_max": -0.2},
    "reward_flat": {"reward": noisy(1.0, 120), "reward_std": 0.3},
    "reward_fell": {"reward": noisy(1.0, 30) + noisy(0.2, 10), "reward_std": 0.5},
    "no_group_variance": {"reward": noisy(1.0, 10), "reward_std": 0.3, "frac_reward_zero_std": 0.95},
    "reward_hacking": {"reward": RISING, "kl_ref": line(0.0, 3.0, 40)},
    "kl_growing": {"reward": noisy(1.0, 40), "kl_ref": line(0.0, 3.0, 40)},
    "nothing_learned": {"loss": [0.1] * 50, "kl_ref": 1e-10, "clip_ratio__region_mean": 0.0, "reward": noisy(1, 50)},
    "reward_missing": {"completions__mean_length": [20.0] * 5, "frac_reward_zero_std": 1.0},
    "completions_short": {"completions__mean_length": [1.4] * 5, "reward": noisy(0.5, 5)},
    "completions_truncated": {"completions__clipped_ratio": [0.97] * 10},
    "completions_repeating": {"completions__repetition": [0.6] * 10},
    "thinking_missing": {"completions__thinking_closed": [0.05] * 10},
    "sampling_certain": {"entropy": [0.001] * 5},
    "critic_useless": {"explained_variance": noisy(-0.3, 30)},
    "critic_loss_not_falling": {"explained_variance": [0.02] * 40, "critic_loss": noisy(1.0, 40)},
    "engine_mismatch": {"sampling__k3": [0.05] * 5},
    "calls_unparsed": {"tools__failed__unparsed": [0.6] * 10, "tools__failure_frequency": 0.7},
    "tools_failing": {"tools__failed__raised": [0.6] * 10, "tools__failure_frequency": 0.7},
    "episodes_endless": {"episodes__reached_max_turns": [0.95] * 10},
    "observations_crowding": {"episodes__observation_share": [0.95] * 10},
}

GOOD = {
    "calls_unparsed": [{"tools__failed__unparsed": [0.4] * 10}, {"tools__failed__unparsed": [0.6] * 9}],
    "tools_failing": [  # what cannot be read is another matter
        {"tools__failed__unparsed": [0.6] * 10, "tools__failure_frequency": 0.9},
        {"tools__failed__raised": [0.4] * 10, "tools__failure_frequency": 0.4},
    ],
    "episodes_endless": [{"episodes__reached_max_turns": [0.8] * 10}],
    "observations_crowding": [{"episodes__observation_share": [0.85] * 10}],
    "reward_missing": [{"reward": noisy(0.5, 5), "reward_std": 0.3, "completions__mean_length": 20.0}],
    "reward_constant": [
        {"reward": [0.5] * 4, "reward_std": 0.0},  # not long enough
        {"reward": noisy(0.5, 5), "reward_std": 0.0},  # one reward a step, another each step
        {"reward": [0.1] * 5 + [1.0] * 5, "reward_std": [0.3] * 5 + [0.0] * 5},  # solved
    ],
    "reward_negative": [
        {"reward": line(-5.0, -1.0, 40), "reward_std": 0.3, "reward_max": -0.2},  # negative, and learning
        {"reward": noisy(-1.0, 20), "reward_std": 0.3, "reward_max": [-0.2] * 19 + [0.1]},
    ],
    "reward_flat": [
        {"reward": noisy(1.0, 119), "reward_std": 0.3},
        {"reward": noisy(1.0, 60) + noisy(1.2, 60), "reward_std": 0.3},
        {"reward": line(0.0, 1.0, 60) + noisy(1.0, 200), "reward_std": 0.3},  # converged
    ],
    "reward_fell": [
        {"reward": noisy(1.0, 200, size=0.5), "reward_std": 0.5},  # noise alone
        {"reward": noisy(1.0, 30, size=0.01) + noisy(0.9, 10, size=0.01), "reward_std": 0.5},  # does not matter
    ],
    "no_group_variance": [
        {"completions__mean_length": [20.0] * 10, "frac_reward_zero_std": 1.0},  # no rewards at all: reward_missing
        {"reward": noisy(1.0, 10), "reward_std": 0.3, "frac_reward_zero_std": 0.85},
        {"reward": RISING, "reward_std": 0.3, "reward_max": 6.0, "frac_reward_zero_std": 0.95},  # solved
    ],
    "reward_hacking": [
        {"reward": RISING, "kl_ref": line(0.0, 0.9, 40)},
        {"reward": noisy(1.0, 40), "kl_ref": line(0.0, 3.0, 40)},  # no reward for it: kl_growing
        {"reward": RISING, "completions__repetition": 0.6},  # repeated itself before
    ],
    "kl_growing": [
        {"reward": noisy(1.0, 40), "kl_ref": [0.1] * 30 + [11.0, 2.4, 0.1, 0.2, 6.6] + [0.2] * 5},  # single tokens
        {"reward": RISING, "kl_ref": line(0.0, 3.0, 40)},  # for reward: reward_hacking
    ],
    "nothing_learned": [
        {"loss": [0.1] * 50, "kl_ref": 1e-5, "clip_ratio__region_mean": 0.0, "reward": noisy(1, 50)},
        {"loss": [0.1] * 49, "kl_ref": 1e-10, "clip_ratio__region_mean": 0.0, "reward": noisy(1, 49)},
        {"loss": [0.1] * 50, "grad_norm": 0.5, "clip_ratio__region_mean": 0.0, "reward": noisy(1, 50)},
        {"loss": [0.1] * 60, "grad_norm": [0.5] * 40 + [0.0] * 20, "clip_ratio__region_mean": 0.0},  # solved
    ],
    "completions_short": [
        {"completions__mean_length": [4.2] * 20},  # short answers that are right: nothing has shrunk
        {"completions__mean_length": [200.0] * 5 + [40.0] * 5},  # shorter, but not short
    ],
    "completions_truncated": [{"completions__clipped_ratio": [0.97] * 5 + [0.8] * 5}],
    "completions_repeating": [{"completions__repetition": [0.4] * 10}],
    "thinking_missing": [
        {"completions__thinking_closed": [0.3] * 10},
        {"completions__thinking_closed": [0.0] * 4},
        {"completions__thinking_closed": [0.0] * 4 + [0.1] * 5},
    ],
    "sampling_certain": [
        {"entropy": [0.5] * 5 + [0.001] * 50},  # certain in the end: solved
        {"entropy": [0.02] * 5},
    ],
    "critic_useless": [
        {"explained_variance": noisy(-0.3, 29)},
        {"explained_variance": [-2.0] * 10 + [0.1] * 20},
    ],
    "critic_loss_not_falling": [
        {"explained_variance": [0.02] * 40, "critic_loss": line(1.0, 0.5, 40)},
        {"explained_variance": [0.5] * 40, "critic_loss": [1.0] * 40},  # harder returns, well explained
    ],
    "engine_mismatch": [{"sampling__k3": [0.001] * 5}],
}


def speaking(of: Curves) -> set[str]:
    return {rule.name for rule in RULES if rule.check(of, LIMITS)}


def test_every_rule_has_its_curves():
    assert set(BAD) == set(GOOD) == {rule.name for rule in RULES} - {NOT_FINITE}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_curve_makes_its_rule_speak_and_no_other(name):
    assert speaking(curves(**BAD[name])) == {name}


@pytest.mark.parametrize(("name", "number"), [(name, i) for name, parts in GOOD.items() for i in range(len(parts))])
def test_the_nearest_good_curve_does_not(name, number):
    assert name not in speaking(curves(**GOOD[name][number]))


def test_without_a_reference_a_zero_gradient_tells_that_nothing_is_learned():
    still = curves(loss=[0.1] * 50, grad_norm=0.0, clip_fraction=0.0, reward=noisy(1, 50))
    assert speaking(still) == {"nothing_learned"}
    assert "after 50 logs the gradient" in str(checks.nothing_learned(still, LIMITS))


def test_text_that_breaks_while_the_reward_rises_is_hacking_even_without_a_reference():
    broken = curves(reward=RISING, completions__repetition=[0.05] * 20 + [0.8] * 20)
    assert "reward_hacking" in speaking(broken)


def test_groups_without_variance_far_below_the_highest_reward_are_no_solved_task():
    stuck = curves(reward=RISING, reward_std=0.3, reward_max=12.0, frac_reward_zero_std=0.95)
    assert speaking(stuck) == {"no_group_variance"}


def test_completions_that_shrink_are_short_before_they_are_gone():
    shrunk = curves(completions__mean_length=[200.0] * 5 + [30.0] * 5)
    assert "completions_short" in speaking(shrunk)
    assert "have 30.0 tokens on average; at the start they had 200.0" in str(checks.completions_short(shrunk, LIMITS))


def test_that_nothing_thinks_is_said_before_what_follows_from_it():
    log = {"completions/thinking_closed": 0.0, "reward": 0.0, "reward_std": 0.0, "loss": 0.0}
    monitor = HealthMonitor()
    said = [message.rule for step in range(1, 11) for message in monitor.observe(step, log)]
    assert said == ["thinking_missing", "reward_constant"]


@pytest.mark.parametrize("name", [name for name, run in RECORDED.items() if not run["rules"]])
def test_recorded_good_runs_hear_nothing(name):
    assert heard(RECORDED[name]["curves"]) == []


@pytest.mark.parametrize("name", [name for name, run in RECORDED.items() if run["rules"]])
def test_recorded_bad_runs_hear_what_is_wrong(name):
    assert set(heard(RECORDED[name]["curves"])) == set(RECORDED[name]["rules"])


def heard(recorded: dict) -> list[str]:
    monitor = HealthMonitor()
    length = max(map(len, recorded.values()))
    logs = ({name: v[i] for name, v in recorded.items() if v[i] is not None} for i in range(length))
    return [message.rule for step, log in enumerate(logs, start=1) for message in monitor.observe(step, log)]


def test_there_are_recorded_runs_of_both_kinds():
    good = [name for name, run in RECORDED.items() if not run["rules"]]
    assert len(good) >= 2 and len(RECORDED) - len(good) >= 4


def test_a_young_run_whose_reward_rises_is_not_told_that_it_has_not():
    rising = [0.2, 0.3, 0.3, 0.4, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.3, 1.4]
    drifting = curves(reward=rising, reward_std=0.3, kl_ref=2.0)
    assert checks.kl_growing(drifting, LIMITS) is None
    flat = curves(reward=[0.2, 0.3] * 6, reward_std=0.3, kl_ref=2.0)
    assert "kl_ref of the last 10 logs is 2" in str(checks.kl_growing(flat, LIMITS))
