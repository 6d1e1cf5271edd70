# SPDX-License-Identifier: Apache-2.0
"""The reward curve: what is drawn, and that a run without rewards says so."""

import os
from xml.etree import ElementTree

import matplotlib.image
from naming import raises_naming

from minimind_hf.reports import curve
from minimind_hf.reports.charts import running_mean
from minimind_hf.reports.curve import plot_reward_curve
from minimind_hf.reports.record import RunRecord, series


def logs(rewards: list[float]) -> list[dict]:
    return [{"step": step, "reward": value, "reward_std": 0.5, "loss": 0.0} for step, value in enumerate(rewards, 1)]


def test_curve_is_written_where_told(tmp_path):
    path = plot_reward_curve(logs([0.1, 0.4, 0.9]), tmp_path / "new" / "curve.png")
    image = matplotlib.image.imread(path)
    assert image.shape[:2] == (540, 960)  # 8 x 4.5 inches at 120 dots
    assert len({tuple(pixel) for pixel in image.reshape(-1, image.shape[-1])}) > 10  # not an empty canvas


def test_format_follows_the_suffix_and_the_curve_has_training_and_evaluation(tmp_path):
    history = [*logs([0.1, 0.4, 0.9]), {"step": 3, "eval_reward": 0.5}]
    picture = ElementTree.parse(plot_reward_curve(history, tmp_path / "curve.svg", title="of $MODEL_1$ <b>")).getroot()
    paths = [element.get("style", "") for element in picture.iter("{http://www.w3.org/2000/svg}path")]
    both = (curve.TRAINING_COLOUR, curve.EVALUATION_COLOUR)
    colours = {colour for style in paths for colour in both if f"stroke: {colour}" in style}
    assert colours == {*both}
    figure = curve.reward_figure(RunRecord("", history), "of $MODEL_1$ <b>")
    [legend] = figure.legends
    labels = ["mean", "evaluation", "running mean", "± std of completions"]
    assert [text.get_text() for text in legend.get_texts()] == labels
    assert [list(line.get_xdata()) for line in figure.axes[0].lines] == [[1, 2, 3], [3], [1, 2, 3]]


def test_an_earlier_picture_stays_until_the_new_one_is_whole(tmp_path):
    path = plot_reward_curve(logs([0.1, 0.4]), tmp_path / "curve.png")
    before = path.read_bytes()
    with raises_naming(ValueError, "bmp9"):
        plot_reward_curve(logs([0.1, 0.4]), tmp_path / "curve.bmp9")
    link = tmp_path / "link.png"
    link.symlink_to(path)
    plot_reward_curve(logs([0.9, 0.1, 0.5]), link)
    assert path.read_bytes() == before != link.read_bytes() and not link.is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["curve.png", "link.png"]


def test_a_run_without_rewards_has_no_curve(tmp_path):
    with raises_naming(ValueError, 1, "'reward'", "logging_steps"):
        plot_reward_curve([{"step": 1, "loss": 0.0}], tmp_path / "curve.png")


def test_the_later_log_of_a_step_counts():
    history = [{"step": 1, "reward": 1.0}, {"step": 2, "reward": 2.0}, {"step": 2, "eval_reward": 9.0}]
    resumed = [{"step": 2, "reward": 2.5}, {"step": 3, "reward": 3.0}]
    assert series(history + resumed, "reward") == {1: 1.0, 2: 2.5, 3: 3.0}


def test_running_mean_over_a_twentieth_of_the_run():
    values = [float(n) for n in range(40)]  # window 2
    assert running_mean(values)[:3] == [0.0, 0.5, 1.5]
    assert running_mean([1.0, 3.0]) == [1.0, 3.0]  # window 1
