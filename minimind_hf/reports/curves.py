# SPDX-License-Identifier: Apache-2.0
"""What the page's script draws: lines with their values on every horizontal axis, and the charts that they belong to.

One run: a chart has a line for each of its logged names. Several runs: every logged name has a chart of its own, with
a line for each run; runs that differ in nothing but their seeds are drawn faintly, and above them their mean with its
interval. Everything here is plain data, which goes into the page as JSON.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from statistics import fmean
from typing import Any

from ..language import said, sentences
from .charts import Chart, charts_of
from .people import number
from .record import FROM_DATA, RunRecord
from .seeds import by_settings, mean_over_runs

AXES = {
    "step": "optimizer step",
    "completions": "completions sampled",
    "tokens": "tokens sampled",
    "tokens_of_data": "tokens trained on",
    "seconds": "seconds of training",
}
MOST_POINTS = 1500  # of a line; of more, means of neighbours are drawn
_DIGITS, _DIGITS_OF_X = 5, 9
_FEWEST_TO_CUT = 5  # points; with fewer there is no telling what is usual
_EVALUATION = "eval_"
_HELD_OUT = "Held-out prompts"
_OF_EACH_FUNCTION = (_HELD_OUT, "Signals")  # shown at once, where several runs have them
_DISTANCE = re.compile(r"sampling/(k3|sampling_logp_difference/|audit)|approx_kl")
_ROUNDING = 1e-4  # nats

Points = Mapping[int, float]  # by step


def axes_of(run: RunRecord) -> dict[str, dict[int, float]]:
    """For each axis that the run can be drawn over, its value at every logged step."""
    steps = sorted({log["step"] for log in run.history})
    axes = {"step": {step: float(step) for step in steps}}
    for axis, name in (("completions", "completions/count"), ("tokens", "completions/tokens")):
        if counts := run.series(name):
            axes[axis] = dict(zip(counts, accumulate(counts.values()), strict=True))
    if run.learns_from == FROM_DATA and (totals := run.series("num_tokens")):
        axes["tokens_of_data"] = totals
    if seconds := run.seconds_by_step:
        axes["seconds"] = seconds
    return {axis: _at(points, steps) for axis, points in axes.items()}


def _at(points: Points, steps: Sequence[int]) -> dict[int, float]:
    """A running total at steps that may lie between its own; 0 before the first."""
    found, last = {}, 0.0
    for step in steps:
        last = points.get(step, last)
        found[step] = last
    return found


def chart_data(runs: Sequence[RunRecord], labels: Sequence[str]) -> dict[str, Any]:
    """All charts of one or several runs, for the page's script.

    Args:
        runs (`Sequence[RunRecord]`): At least one.
        labels (`Sequence[str]`): What each is called.

    Returns:
        `dict`: `axes` (names and titles of the horizontal axes that all runs have), `several` (whether the runs are
        compared), `groups` (runs with equal settings, each with its label and colour), `longest` (seconds of the
        longest run) and `charts`, each with `title`, `note`, `unit`, `kind` (`"lines"` or `"stack"`), `spoken` (what
        it shows, in words), `main` (whether it is shown at once) and `lines`.
    """
    axes = [axes_of(run) for run in runs]
    common = {name: said(title) for name, title in AXES.items() if all(name in each for each in axes)}
    charts = list(_of_one(runs[0], axes[0]) if len(runs) == 1 else _of_several(runs, labels, axes))
    for chart in charts:
        for line in chart["lines"]:
            line["x"] = {name: line["x"][name] for name in common}
    groups = [group_label(members, labels) for members in by_settings(runs)]
    return {
        "axes": common,
        "several": len(runs) > 1,
        "groups": [{"label": label, "colour": place} for place, label in enumerate(groups)],
        "longest": max((max(each.get("seconds", {}).values(), default=0.0) for each in axes), default=0.0),
        "charts": charts,
    }


def zero_everywhere(runs: Sequence[RunRecord]) -> list[str]:
    """Logged names that belong on a chart and are 0 in every log of every run: no line is drawn of them.

    What compares policies that are the same is 0 up to rounding.
    """
    names = dict.fromkeys(name for run in runs for chart in charts_of(run) for name in chart.found_in(run))
    values = {name: [abs(value) for run in runs for value in run.series(name).values()] for name in names}
    return [name for name in names if max(values[name]) <= (_ROUNDING if _DISTANCE.match(name) else 0.0)]


def _of_one(run: RunRecord, axes: Mapping[str, Points]) -> Iterator[dict[str, Any]]:
    all_zero = set(zero_everywhere([run]))
    for chart in map(_worded, charts_of(run)):
        names = [name for name in chart.found_in(run) if name not in all_zero]
        if not names:
            continue
        factors = [run.weights.get(chart.label(name), 0.0) if chart.weighted else 1.0 for name in names]
        lines = [
            line(chart.label(name), _scaled(run.series(name), factor), axes, place, name)
            for place, (name, factor) in enumerate(zip(names, factors, strict=True))
        ]
        if chart.spread and (spread := run.series(chart.spread)):
            lines[0] |= {"spread": _thinned([spread.get(step, 0.0) for step in run.series(names[0])])}
            chart = replace(
                chart, note=sentences(chart.note, said("The band is one standard deviation to either side."))
            )
        yield _chart(chart, lines) | (_cut(run, names) if chart.stacked and not chart.weighted else {})


def _of_several(
    runs: Sequence[RunRecord], labels: Sequence[str], axes: Sequence[Mapping[str, Points]]
) -> Iterator[dict[str, Any]]:
    all_zero, groups = set(zero_everywhere(runs)), by_settings(runs)
    seen: set[tuple[str, str | None]] = set()
    for chart in _ordered(dict.fromkeys(chart for run in runs for chart in charts_of(run) if not chart.weighted)):
        names = dict.fromkeys(name for run in runs for name in chart.found_in(run))
        having = [(place, members) for place, members in enumerate(groups) if chart.is_of(runs[members[0]])]
        new = [name for name in names if name not in all_zero and (name, chart.learns_from) not in seen]
        seen |= {(name, chart.learns_from) for name in new}
        for place, label in enumerate(dict.fromkeys(map(chart.label, new))):
            lines = [
                each
                for colour, members in having
                for name in new  # several have one label: what DPO and reward models call the margin
                if chart.label(name) == label
                for each in _group(members, runs, labels, axes, name, colour)
            ]
            is_one_of_many = (len(chart.names) > 1 or "*" in chart.names[0]) and label != chart.title.lower()
            shown = _worded(chart)
            title = said("{title}: {label}", title=shown.title, label=label) if is_one_of_many else shown.title
            main = place == 0 or chart.title in _OF_EACH_FUNCTION
            bands = said("Bands are 95 % intervals over runs.") if any(map(_is_mean, lines)) else ""
            shown = replace(shown, title=title, note=sentences(shown.note, bands), stacked=False)
            yield _chart(shown, lines) | {"main": main}


def _worded(chart: Chart) -> Chart:
    """The chart in the language that is spoken."""
    return replace(chart, title=said(chart.title), note=said(chart.note), unit=said(chart.unit))


def _is_mean(line: Mapping[str, Any]) -> bool:
    return line.get("mean", False)


def _ordered(charts: Iterable[Chart]) -> list[Chart]:
    """What is compared first: rewards on held-out prompts."""
    return sorted(charts, key=lambda chart: chart.title != _HELD_OUT)


def _group(
    members: Sequence[int],
    runs: Sequence[RunRecord],
    labels: Sequence[str],
    axes: Sequence[Mapping[str, Points]],
    name: str,
    colour: int,
) -> Iterator[dict[str, Any]]:
    """The lines of runs with equal settings: each, and if there are several their mean over common steps."""
    group = group_label(members, labels)
    series = {place: points for place in members if (points := runs[place].series(name))}
    for place, points in series.items():
        yield line(labels[place], points, axes[place], colour, name) | {"faint": len(series) > 1, "group": group}
    steps = sorted(set.intersection(*map(set, series.values()))) if len(series) > 1 else []
    if not steps:
        return
    means = [mean_over_runs([points[step] for points in series.values()]) for step in steps]
    mean_axes = {
        axis: {step: fmean(axes[place][axis][step] for place in series) for step in steps}
        for axis in AXES
        if all(axis in axes[place] for place in series)
    }
    label = said("{group}, mean of {count}", group=group, count=len(series))
    yield line(label, {step: mean.value for step, mean in zip(steps, means, strict=True)}, mean_axes, colour, name) | {
        "low": _thinned([mean.low for mean in means]),
        "high": _thinned([mean.high for mean in means]),
        "mean": True,
        "group": group,
    }


def group_label(members: Sequence[int], labels: Sequence[str]) -> str:
    """What runs with equal settings are called together: how their names begin, up to where a word ends."""
    names = [labels[place] for place in members]
    if len(names) == 1:
        return names[0]
    length = next((place for place, letters in enumerate(zip(*names, strict=False)) if len(set(letters)) > 1), 10**6)
    common = names[0][:length]
    for end in ("seed", "s"):  # `grpo_seed_1` and `grpo_seed_2` are `grpo`
        common = (
            common.rstrip("_-/ ,=0123456789").removesuffix(f"_{end}").removesuffix(f"-{end}").removesuffix(f" {end}")
        )
    return common.rstrip("_-/ ,=") or names[0]


def line(label: str, points: Points, axes: Mapping[str, Points], colour: int, name: str) -> dict[str, Any]:
    """A line for the page's script: its values, where they lie on each axis, and how it looks."""
    return {
        "label": label,
        "colour": colour,
        "dots": name.startswith(_EVALUATION) or len(points) == 1,
        "logs_per_point": _width(len(points)),
        "x": {axis: _thinned([along.get(step, 0.0) for step in points], _DIGITS_OF_X) for axis, along in axes.items()},
        "y": _thinned(list(points.values())),
    }


def _chart(chart: Chart, lines: list[dict[str, Any]]) -> dict[str, Any]:
    thinned = any(each["logs_per_point"] > 1 for each in lines)
    return {
        "title": chart.title,
        "note": sentences(chart.note, said("Points are means of neighbouring logs.") if thinned else ""),
        "unit": chart.unit,
        "kind": "stack" if chart.stacked else "lines",
        "spoken": spoken(chart.title, lines),
        "main": True,
        "lines": lines,
    }


def spoken(title: str, lines: Sequence[Mapping[str, Any]]) -> str:
    """What a chart shows, for those who do not see it: where its lines begin, end, and are highest."""
    told = [_told(each) for each in lines if not each.get("faint")]
    return said("{title}: {lines}.", title=title, lines=said("; ").join(told[:8]))


def _told(line: Mapping[str, Any]) -> str:
    first, last, top = (number(value) for value in (line["y"][0], line["y"][-1], max(line["y"])))
    if len(line["y"]) == 1:
        return f"{line['label']} {first}"
    text = (
        "{label} from {first} to {last}" if top in (first, last) else "{label} from {first} to {last}, highest {top}"
    )
    return said(text, label=line["label"], first=first, last=last, top=top)


def _scaled(points: Points, factor: float) -> Points:
    return {step: factor * value for step, value in points.items()}


def _width(count: int) -> int:
    """How many of `count` logs make a point of a line."""
    return -(-count // MOST_POINTS)


def _thinned(values: Sequence[float], digits: int = _DIGITS) -> list[float]:
    """At most `MOST_POINTS` values with the digits that a chart can show."""
    width = _width(len(values))
    parts = (values[start : start + width] for start in range(0, len(values), width))
    return [float(f"{fmean(part):.{digits}g}") for part in parts]


def _cut(run: RunRecord, names: Sequence[str]) -> dict[str, Any]:
    """Where a few high values would flatten all others, how high the axis goes, and what lies above it."""
    columns = [run.series(name) for name in names]
    totals = {step: sum(points.get(step, 0.0) for points in columns) for step in sorted(set().union(*columns))}
    usual = sorted(totals.values())[int(0.9 * (len(totals) - 1))]
    step, highest = max(totals.items(), key=lambda item: item[1])
    if len(totals) < _FEWEST_TO_CUT or highest <= 2 * usual or usual <= 0:
        return {}
    top = 1.25 * usual
    count = sum(value > top for value in totals.values())
    text = (
        "Highest: {highest} at step {step}, one of {count} that are cut."
        if count > 1
        else "Highest: {highest} at step {step}, which is cut."
    )
    return {"top": top, "above": said(text, highest=number(highest), step=step, count=count)}
