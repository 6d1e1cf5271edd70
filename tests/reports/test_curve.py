# SPDX-License-Identifier: Apache-2.0
"""The reward curve: what is drawn, and that a run without rewards says so."""

import matplotlib.image
from naming import raises_naming

from minimind_hf.reports import curve as report
from minimind_hf.reports.record import series


def logs(rewards: list[float]) -> list[dict]:
    return [{"step": step, "reward": value, "reward_std": 0.5, "loss": 0.0} for step, value in enumerate(rewards, 1)]


def test_curve_is_written_where_told(tmp_path):
    path = report.plot_reward_curve(logs([0.1, 0.4, 0.9]), tmp_path / "new" / "curve.png")
    image = matplotlib.image.imread(path)
    assert image.shape[:2] == (540, 960)  # 8 x 4.5 inches at 120 dots
    assert len({tuple(pixel) for pixel in image.reshape(-1, image.shape[-1])}) > 10  # not an empty canvas


def test_a_run_without_rewards_has_no_curve(tmp_path):
    with raises_naming(ValueError, 1, "'reward'", "logging_steps"):
        report.plot_reward_curve([{"step": 1, "loss": 0.0}], tmp_path / "curve.png")


def test_the_later_log_of_a_step_counts():
    history = [{"step": 1, "reward": 1.0}, {"step": 2, "reward": 2.0}, {"step": 2, "eval_reward": 9.0}]
    resumed = [{"step": 2, "reward": 2.5}, {"step": 3, "reward": 3.0}]
    assert series(history + resumed, "reward") == {1: 1.0, 2: 2.5, 3: 3.0}


def test_running_mean_over_a_twentieth_of_the_run():
    values = [float(n) for n in range(40)]  # window 2
    assert report._running_mean(values)[:3] == [0.0, 0.5, 1.5]
    assert report._running_mean([1.0, 3.0]) == [1.0, 3.0]  # window 1
