# SPDX-License-Identifier: Apache-2.0
"""The curves of a run as SVG, each chart one row of a table: which logged names it draws and what they tell.

Lines differ in style as well as in colour, and letters stay letters, so that a printed page can be read.
"""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from .record import RunRecord

_COLOURS = ("#1f4e9e", "#c0392b", "#1e7d45", "#7b3fa0", "#b06d00", "#3d3d3d", "#0b7d8c", "#a3195b")
_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (3, 1)), (0, (1, 1)), (0, (7, 2)))
_LEGEND_COLUMNS = 3  # above the curves, which it would cover
_FEWEST_TO_CUT = 5  # points, below which there is no telling what is usual


@dataclass(frozen=True)
class Chart:
    """A chart of a report.

    Args:
        title (`str`): Stands above it.
        names (`tuple[str, ...]`): Logged names; one that ends in `*` stands for all that begin so.
        note (`str`): What to look for.
        unit (`str`): Of the values.
        spread (`str`, *optional*): Logged name of the standard deviation around the first one.
        stacked (`bool`): Whether the values add up.
        label (`Callable[[str], str]`): Short name in the legend.
    """

    title: str
    names: tuple[str, ...]
    note: str
    unit: str = ""
    spread: str | None = None
    stacked: bool = False
    label: Callable[[str], str] = lambda name: name

    def found_in(self, run: RunRecord) -> list[str]:
        """The names of this chart that the run has logged."""
        found = []
        for pattern in self.names:
            prefix, star, suffix = pattern.partition("*")
            for name in run.logged_names:
                fits = name.startswith(prefix) and name.endswith(suffix) if star else name == pattern
                if fits and name not in found:
                    found.append(name)
        return found


CHARTS = (
    Chart("Reward", ("reward", "reward_min", "reward_max", "eval_reward"), "Should rise.", spread="reward_std"),
    Chart(
        "Signals",
        ("rewards/*/mean",),
        "One line per reward function, before its weight. One that rises while another falls is being bought with it.",
        label=lambda name: name.removeprefix("rewards/").removesuffix("/mean"),
    ),
    Chart("KL to the reference", ("kl_ref",), "Steady growth beyond 0.1 means that the policy drifts away.", "nats"),
    Chart(
        "Length of completions",
        ("completions/mean_length", "completions/min_length", "completions/max_length"),
        "A sudden fall or rise often means that length is being rewarded.",
        "tokens",
        label=lambda name: name.removeprefix("completions/").removesuffix("_length"),
    ),
    Chart(
        "Shares",
        (
            "completions/clipped_ratio",
            "completions/repetition",
            "completions/thinking_closed",
            "frac_reward_zero_std",
            "early_stopped",
        ),
        "clipped_ratio: completions that were cut. frac_reward_zero_std: groups that teach nothing.",
        label=lambda name: name.removeprefix("completions/"),
    ),
    Chart(
        "Clip fraction",
        ("clip_ratio/*_mean", "clip_fraction", "value_clip_fraction"),
        "0 throughout, with no KL, means that nothing is learned; far above 0.2 that steps are too large.",
        label=lambda name: name.removeprefix("clip_ratio/"),
    ),
    Chart("Policy moved since sampling", ("approx_kl",), "How stale the rollouts are when they are trained on."),
    Chart("Entropy", ("entropy",), "A fall to 0 ends exploration.", "nats"),
    Chart(
        "Loss", ("loss", "policy_loss", "aux_loss"), "Of little meaning by itself: the data change with the policy."
    ),
    Chart("Gradient norm", ("grad_norm", "critic_grad_norm"), "Spikes precede collapse; lower the learning rate."),
    Chart("Critic: loss", ("critic_loss",), "Should fall."),
    Chart("Critic: explained variance", ("explained_variance",), "1 is perfect, below 0 worse than a constant."),
    Chart("Critic: values and returns", ("values/mean", "returns/mean"), "Values should come to follow returns."),
    Chart(
        "Time per step",
        ("seconds/*",),
        "Where an optimizer step spends its time.",
        "seconds",
        stacked=True,
        label=lambda name: name.removeprefix("seconds/"),
    ),
    Chart("Rate", ("tokens_per_second",), "Completion tokens drawn, over the whole time.", "tokens / s"),
)


_NOT_DRAWN = re.compile(
    r".*/std|reward_std|learning_rate|critic_learning_rate|ratio_mean|advantages/.*|train_.*|total_.*|eval_.*"
)


def charts_of(run: RunRecord) -> list[Chart]:
    """The charts for which a run has logged something; what reward functions log themselves comes last."""
    found = [chart for chart in CHARTS if chart.found_in(run)]
    drawn = {name for chart in found for name in chart.found_in(run)}
    own = [name for name in run.logged_names if name not in drawn and not _NOT_DRAWN.fullmatch(name)]
    return found + [Chart(name, (name,), "Logged besides.") for name in own]


def draw(chart: Chart, run: RunRecord) -> str:
    """Draws a chart of [`charts_of`] as an `<svg>` element."""
    names = chart.found_in(run)
    figure = Figure(figsize=(5.0, 2.8), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    (_stack if chart.stacked else _lines)(axes, chart, run, names)
    axes.set_xlabel("optimizer step", fontsize=9)
    axes.set_ylabel(chart.unit, fontsize=9)
    axes.tick_params(labelsize=9)
    axes.grid(color="#d5d5d5", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if len(names) > 1 or chart.spread:
        entries = len(axes.get_legend_handles_labels()[0])
        figure.legend(fontsize=8, frameon=False, loc="outside upper center", ncols=min(entries, _LEGEND_COLUMNS))
    return _svg(figure, salt=chart.title)


def _lines(axes: Axes, chart: Chart, run: RunRecord, names: list[str]) -> None:
    for index, name in enumerate(names):
        points = run.series(name)
        marker = "o" if len(points) == 1 or name.startswith("eval_") else None
        axes.plot(
            list(points),
            list(points.values()),
            color=_COLOURS[index % len(_COLOURS)],
            linestyle=_STYLES[index % len(_STYLES)],
            linewidth=1.4,
            marker=marker,
            markersize=4,
            label=chart.label(name),
        )
    spreads = run.series(chart.spread) if chart.spread else {}
    middle = run.series(names[0])
    if steps := [step for step in middle if step in spreads]:
        low, high = ([middle[step] + sign * spreads[step] for step in steps] for sign in (-1, 1))
        axes.fill_between(steps, low, high, color=_COLOURS[0], alpha=0.12, linewidth=0, label="± std of completions")


def _stack(axes: Axes, chart: Chart, run: RunRecord, names: list[str]) -> None:
    columns = {name: run.series(name) for name in names}
    steps = sorted({step for points in columns.values() for step in points})
    heights = [[points.get(step, 0.0) for step in steps] for points in columns.values()]
    hatches = ("", "//", "..", "xx", "--", "++")
    kind = {"labels": [chart.label(name) for name in names], "colors": _COLOURS[: len(names)], "alpha": 0.75}
    if len(steps) == 1:
        steps, heights = [steps[0] - 0.5, steps[0] + 0.5], [row * 2 for row in heights]
    areas = axes.stackplot(steps, heights, **kind)
    for area, hatch in zip(areas, hatches, strict=False):
        area.set(hatch=hatch, edgecolor="white", linewidth=0)
    axes.set_ylim(bottom=0)
    _cut_outliers(axes, steps, [sum(column) for column in zip(*heights, strict=True)], chart.unit)


def _cut_outliers(axes: Axes, steps: list[float], values: list[float], unit: str) -> None:
    """Lets a few values go beyond the axis, and says how high they are, where they would flatten all others."""
    usual = sorted(values)[int(0.9 * (len(values) - 1))]
    highest = max(values)
    if len(values) < _FEWEST_TO_CUT or highest <= 2 * usual or usual <= 0:
        return
    top = 1.25 * usual
    axes.set_ylim(0, top)
    count = sum(value > top for value in values)
    more = f", one of {count} cut" if count > 1 else ", cut"
    axes.set_title(
        f"highest: {highest:.3g} {unit} at step {steps[values.index(highest)]:g}{more}", fontsize=8, loc="right"
    )


def _svg(figure: Figure, salt: str) -> str:
    """The figure as an element of a page: letters as text, names unique to the chart, no XML preamble."""
    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt, "font.family": "sans-serif"}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    return text[text.index("<svg") :]
