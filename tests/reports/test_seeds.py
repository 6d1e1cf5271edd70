# SPDX-License-Identifier: Apache-2.0
"""Means over seeds: which runs belong together, and Student's interval against tables and against samples."""

import math
import random
from statistics import fmean

import pytest
from naming import raises_naming

from minimind_hf.reports.curves import chart_data, group_label
from minimind_hf.reports.record import RunRecord
from minimind_hf.reports.results import settings_that_differ, table
from minimind_hf.reports.seeds import by_settings, mean_over_runs, students_t

# Two-sided 95 % quantiles as printed in every table, by degrees of freedom
QUANTILES = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 7: 2.365, 10: 2.228, 20: 2.086, 30: 2.042, 120: 1.980}


@pytest.mark.parametrize("freedom", QUANTILES)
def test_quantiles_are_those_of_the_tables(freedom):
    assert students_t(freedom) == pytest.approx(QUANTILES[freedom], abs=1e-3)


def test_interval_by_hand_and_of_a_single_run():
    mean = mean_over_runs([1.0, 2.0, 3.0])  # std 1, so half is t / sqrt(3)
    assert (mean.value, mean.runs) == (2.0, 3) and mean.half == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert (mean.low, mean.high) == (2.0 - mean.half, 2.0 + mean.half)
    assert mean_over_runs([5.0]).half == math.inf
    with raises_naming(ValueError, "no value"):
        mean_over_runs([])


def test_intervals_hold_the_true_mean_95_times_in_100():
    rng = random.Random(0)
    hits = []
    for _ in range(4000):
        mean = mean_over_runs([rng.gauss(0, 1) for _ in range(3)])
        hits.append(mean.low <= 0 <= mean.high)
    assert fmean(hits) == pytest.approx(0.95, abs=0.014)  # 4 standard errors


def run(name: str, seed: int, rewards: list[float], folder: str | None = None, **settings) -> RunRecord:
    history = [
        {"step": step, "reward": value, "seconds/update": 2.0, "completions/count": 8, "completions/tokens": 80 + seed}
        for step, value in enumerate(rewards, 1)
    ]
    about = {"output_dir": folder} if folder else {}
    return RunRecord(name, history, "CISPO", {"seed": seed, "beta": 0.1, **settings}, about=about)


RUNS = [run("a_seed_1", 1, [1.0, 3.0]), run("b", 1, [0.0], beta=0.2), run("a_seed_2", 2, [2.0, 5.0, 9.0])]


def test_runs_with_equal_settings_are_found():
    assert by_settings(RUNS) == [[0, 2], [1]]
    own = [run(name, 1, [0.0], folder=name, model=f"{name}/supervised") for name in ("x", "y")]
    assert by_settings(own) == [[0, 1]]  # each has made the same start in its own folder
    other = [run(name, 1, [0.0], folder=name, model=f"models/{name}") for name in ("x", "y")]
    assert by_settings(other) == [[0], [1]]
    unknown = [RunRecord("x", []), RunRecord("y", [])]
    assert by_settings(unknown) == [[0], [1]]


@pytest.mark.parametrize(
    ("names", "label"),
    [
        (["grpo_seed_1", "grpo_seed_2"], "grpo"), (["grpo-s1", "grpo-s22"], "grpo"), (["1", "2"], "1"),
        (["ppo"], "ppo"), (["run 10", "run 11"], "run"),
    ],
)  # fmt: skip
def test_what_seeds_are_called_together(names, label):
    assert group_label(range(len(names)), names) == label


def test_mean_and_interval_over_common_steps_on_every_axis():
    data = chart_data(RUNS, [each.name for each in RUNS])
    [chart] = [chart for chart in data["charts"] if chart["title"] == "Reward"]
    one, two, mean, alone = chart["lines"]
    assert one["faint"] and two["faint"] and mean["mean"] and not alone["faint"]
    assert one["colour"] == two["colour"] == mean["colour"] != alone["colour"]
    assert mean["y"] == [1.5, 4.0] and mean["x"]["step"] == [1.0, 2.0]  # the third step is of one run only
    half = 12.706205 * 0.5  # t of one degree of freedom, times std sqrt(1/2) over sqrt(2)
    assert mean["high"][0] - mean["y"][0] == pytest.approx(half, rel=1e-3)
    assert mean["x"]["tokens"] == [81.5, 163.0] and mean["x"]["completions"] == [8.0, 16.0]
    assert two["x"]["seconds"] == [2.0, 4.0, 6.0]
    assert data["groups"] == [{"label": "a", "colour": 0}, {"label": "b", "colour": 1}]


def test_an_axis_that_a_run_does_not_have_is_not_offered():
    bare = RunRecord("bare", [{"step": 1, "reward": 1.0}])
    assert list(chart_data([RUNS[0], bare], ["a", "bare"])["axes"]) == ["step"]
    assert list(chart_data(RUNS, ["a", "b", "c"])["axes"]) == ["step", "completions", "tokens", "seconds"]


def test_results_and_what_differs():
    head, rows = table(RUNS, [each.name for each in RUNS])
    by_name = {row[0]: dict(zip(head, row, strict=True)) for row in rows}
    assert by_name["a"]["runs"] == "2" and by_name["a"]["reward at the end"] == "6 ± 38.1"  # 3 and 9, t / 12.706
    assert by_name["b"]["reward at the end"] == "0" and by_name["b"]["completions"] == "8"
    assert by_name["a"]["time"] == "5 s" and by_name["a"]["per step"] == "2 s"
    assert settings_that_differ(RUNS, [each.name for each in RUNS]) == (["setting", "a", "b"], [["beta", 0.1, 0.2]])
