# SPDX-License-Identifier: Apache-2.0
"""What the page's script draws: lines, axes, what is cut and left out, and what is said of a chart."""

import pytest

from minimind_hf.reports.curves import MOST_POINTS, axes_of, chart_data, zero_everywhere
from minimind_hf.reports.histograms import histogram
from minimind_hf.reports.record import RunRecord


def log(step: int, **values) -> dict:
    return {"step": step, **values}


def charts_of(run: RunRecord) -> dict[str, dict]:
    return {chart["title"]: chart for chart in chart_data([run], ["run"])["charts"]}


def test_axes_are_running_totals():
    history = [
        log(2, **{"completions/count": 8, "completions/tokens": 100, "seconds/update": 1.5}),
        log(3, eval_reward=1.0),
        log(4, **{"completions/count": 8, "completions/tokens": 50, "seconds/update": 0.5}),
    ]
    axes = axes_of(RunRecord("run", history))
    assert axes["step"] == {2: 2.0, 3: 3.0, 4: 4.0}
    assert axes["completions"] == {2: 8, 3: 8, 4: 16} and axes["tokens"] == {2: 100, 3: 100, 4: 150}
    assert axes["seconds"] == {2: 3.0, 3: 3.0, 4: 4.0}  # means over two steps


def test_lines_of_a_run():
    history = [log(step, reward=float(step), reward_std=0.5, eval_reward=2.0) for step in (1, 2)]
    chart = charts_of(RunRecord("run", history))["Reward"]
    reward, held_out = chart["lines"]
    assert reward["y"] == [1.0, 2.0] and reward["spread"] == [0.5, 0.5] and not reward["dots"]
    assert held_out["dots"] and held_out["label"] == "eval_reward"
    assert chart["spoken"] == "Reward: reward from 1 to 2; eval_reward from 2 to 2."


def test_parts_of_the_reward_are_weighted_and_add_up():
    history = [log(1, reward=2.0, **{"rewards/a/mean": 1.0, "rewards/b/mean": 4.0})]
    run = RunRecord("run", history, weights={"a": 1.0, "b": 0.25})
    chart = charts_of(run)["Parts of the reward"]
    assert chart["kind"] == "stack" and [line["y"] for line in chart["lines"]] == [[1.0], [1.0]]
    assert "Parts of the reward" not in charts_of(RunRecord("run", history))  # without weights
    alone = RunRecord("run", [log(1, **{"rewards/a/mean": 1.0})], weights={"a": 1.0})
    assert "Parts of the reward" not in charts_of(alone)


def test_what_is_always_zero_is_folded_away():
    history = [
        log(step, **{"completions/clipped_ratio": 0.0, "completions/repetition": 0.1 * step, "approx_kl": 1e-12,
                     "clip_fraction": 1e-12, "sampling/staleness": 0.0})
        for step in (0, 1)
    ]  # fmt: skip
    run = RunRecord("run", history)
    assert set(zero_everywhere([run])) == {"completions/clipped_ratio", "approx_kl", "sampling/staleness"}
    charts = charts_of(run)
    assert "Age of rollouts" not in charts and "Policy moved since sampling" not in charts
    assert [line["label"] for line in charts["Shares"]["lines"]] == ["repetition"]
    assert "Clip fraction" in charts  # a share, of which nothing is rounding


def test_long_runs_are_drawn_by_means_of_neighbours():
    run = RunRecord("run", [log(step, reward=float(step % 2)) for step in range(2 * MOST_POINTS)])
    chart = charts_of(run)["Reward"]
    assert len(chart["lines"][0]["y"]) == MOST_POINTS and set(chart["lines"][0]["y"]) == {0.5}
    assert chart["lines"][0]["x"]["step"][:2] == [0.5, 2.5] and "means of neighbouring logs" in chart["note"]
    short = charts_of(RunRecord("run", [log(step, reward=1.0) for step in range(MOST_POINTS)]))["Reward"]
    assert len(short["lines"][0]["y"]) == MOST_POINTS and "neighbouring" not in short["note"]


@pytest.mark.parametrize("slow", [[1], [1, 2], []])
def test_slow_steps_do_not_flatten_the_others(slow):
    seconds = {step: 30.0 + step if step in slow else 1.0 for step in range(1, 31)}
    run = RunRecord("run", [log(step, **{"seconds/update": value}) for step, value in seconds.items()])
    chart = charts_of(run)["Time per step"]
    said = {1: "Highest: 31 at step 1, which is cut.", 2: "Highest: 32 at step 2, one of 2 that are cut."}
    assert (chart.get("top"), chart.get("above")) == ((1.25, said[len(slow)]) if slow else (None, None))


def test_several_runs_have_a_chart_for_each_name_held_out_first():
    history = [log(1, reward=1.0, **{"rewards/a/mean": 1.0, "rewards/b/mean": 2.0, "eval_rewards/a/mean": 0.5})]
    runs = [RunRecord(name, history, settings={"beta": name}) for name in ("one", "two")]
    charts = chart_data(runs, ["one", "two"])["charts"]
    assert [chart["title"] for chart in charts] == ["Held-out prompts: a", "Reward", "Signals: a", "Signals: b"]
    assert all([line["label"] for line in chart["lines"]] == ["one", "two"] for chart in charts)


def test_histograms_count_every_value_once():
    values = [0.0, 0.5, 1.0, 1.0, float("nan"), None]
    found = histogram(values)
    assert (found["low"], found["high"], sum(found["counts"])) == (0.0, 1.0, 4)
    assert found["counts"][0] == 1 and found["counts"][10] == 1 and found["counts"][-1] == 2
    assert histogram([3, 3]) == {"low": 2.5, "high": 3.5, "counts": [2]}
    assert histogram([None, float("nan")]) is None
