# SPDX-License-Identifier: Apache-2.0
"""The charts of a run: a table of what there is to draw, and the code that draws one, for the page and for pictures.

Lines differ in style as well as in colour, and text stays text in an SVG, so that a printed page can be read. Nothing
here touches the state that matplotlib's pyplot shares between all figures.
"""

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .record import RunRecord

if TYPE_CHECKING:  # matplotlib takes half a second to import: not before there is a run to draw
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#1f4e9e", "#c0392b", "#1e7d45", "#7b3fa0", "#b06d00", "#3d3d3d", "#0b7d8c", "#a3195b")
_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (3, 1)), (0, (1, 1)), (0, (7, 2)))
_LEGEND_COLUMNS_PER_INCH = 0.6  # above the curves, which it would cover
_FEWEST_TO_CUT = 5  # points; with fewer there is no telling what is usual
_SMOOTHING = 20  # a running mean averages about a twentieth of the run


@dataclass(frozen=True)
class Chart:
    """One chart: which logged values it shows, and how.

    Args:
        title (`str`): Heading above the chart.
        names (`tuple[str, ...]`): Logged names. A `*` in one matches any text.
        note (`str`): What to look for.
        unit (`str`): Label of the vertical axis.
        spread (`str`, *optional*): Logged name of the standard deviation around the first name's values.
        stacked (`bool`): Whether the values add up.
        smoothed (`bool`): Whether the first name also gets a running mean, and its own line is drawn faintly.
        label (`Callable[[str], str]`): Turns a logged name into its label in the legend.
    """

    title: str
    names: tuple[str, ...]
    note: str = ""
    unit: str = ""
    spread: str | None = None
    stacked: bool = False
    smoothed: bool = False
    label: Callable[[str], str] = lambda name: name

    def found_in(self, run: RunRecord) -> list[str]:
        """The logged names of the run that belong on this chart."""
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
        "One line per reward function, before its weight. One that rises as another falls may do so at its expense.",
        label=lambda name: name.removeprefix("rewards/").removesuffix("/mean"),
    ),
    Chart("KL to the reference", ("kl_ref",), "Steady growth beyond 0.1 means the policy is drifting away.", "nats"),
    Chart(
        "Length of completions",
        ("completions/mean_length", "completions/min_length", "completions/max_length"),
        "A sudden rise or fall often means length itself is being rewarded.",
        "tokens",
        label=lambda name: name.removeprefix("completions/").removesuffix("_length"),
    ),
    Chart(
        "Rewards of turns",
        ("rewards/turn_*",),
        "Of the first turns, over the episodes that have them.",
        label=lambda name: name.removeprefix("rewards/").replace("_", " "),
    ),
    Chart(
        "Turns and calls",
        ("episodes/turns", "tools/call_frequency"),
        "Turns of the policy, and calls of tools, per episode.",
    ),
    Chart(
        "Shares of episodes",
        (
            "tools/failure_frequency",
            "tools/failed/unparsed",
            "episodes/reached_max_turns",
            "episodes/observation_share",
        ),
        "Calls that failed, and that could not be read; episodes stopped at max_turns; tokens that are answers.",
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
        "clipped_ratio: completions that were cut off. frac_reward_zero_std: groups that teach nothing.",
        label=lambda name: name.removeprefix("completions/"),
    ),
    Chart(
        "Clip fraction",
        ("clip_ratio/*_mean", "clip_fraction", "value_clip_fraction"),
        "Always 0, with no KL: nothing is learned. Far above 0.2: steps are too large.",
        label=lambda name: name.removeprefix("clip_ratio/"),
    ),
    Chart(
        "Policy moved since sampling", ("approx_kl",), "How stale the rollouts are by the time they are trained on."
    ),
    Chart("Entropy", ("entropy",), "Exploration ends when it reaches 0.", "nats"),
    Chart("Loss", ("loss", "policy_loss", "aux_loss"), "Says little by itself: the data change with the policy."),
    Chart(
        "Gradient norm",
        ("grad_norm", "critic_grad_norm"),
        "Spikes often come before a collapse: lower the learning rate.",
    ),
    Chart("Critic: loss", ("critic_loss",), "Should fall."),
    Chart("Critic: explained variance", ("explained_variance",), "1 is perfect; below 0 is worse than a constant."),
    Chart("Critic: values and returns", ("values/mean", "returns/mean"), "Values should approach the returns."),
    Chart(
        "Time per step",
        ("seconds/*",),
        "Where an optimizer step spends its time.",
        "seconds",
        stacked=True,
        label=lambda name: name.removeprefix("seconds/"),
    ),
    Chart(
        "Rate",
        ("tokens_per_second",),
        "Completion tokens per second of the whole run, not only of sampling.",
        "tokens / s",
    ),
    Chart(
        "Speculation",
        ("rollout/tokens_per_pass", "rollout/acceptance"),
        "Tokens that a row draws per pass, 1 without drafts; and the share of drafts that was drawn.",
        label=lambda name: name.removeprefix("rollout/"),
    ),
)


_NOT_DRAWN = re.compile(
    r".*/std|reward_std|learning_rate|critic_learning_rate|ratio_mean|advantages/.*|train_.*|total_.*|eval_.*"
)


def charts_of(run: RunRecord) -> list[Chart]:
    """The charts that have data in this run. Values that reward functions log themselves come last."""
    found = [chart for chart in CHARTS if chart.found_in(run)]
    drawn = {name for chart in found for name in chart.found_in(run)}
    custom = [name for name in run.logged_names if name not in drawn and not _NOT_DRAWN.fullmatch(name)]
    return found + [Chart(name, (name,), "A custom metric.") for name in custom]


def draw(chart: Chart, run: RunRecord) -> str:
    """Draws a chart of [`charts_of`] as an `<svg>` element."""
    return _svg(figure_of(chart, run), salt=chart.title)


def figure_of(
    chart: Chart,
    run: RunRecord,
    title: str | None = None,
    size: tuple[float, float] = (5.0, 2.8),
    letters: float = 9,
) -> "Figure":
    """Draws a chart.

    Args:
        chart ([`Chart`]): What to draw; the run must have logged at least one of its names.
        run ([`RunRecord`]): The run.
        title (`str`, *optional*): Heading inside the picture.
        size (`tuple[float, float]`): Width and height in inches.
        letters (`float`): Size of the letters in points.

    Returns:
        `Figure`: A figure that can be saved in any format.
    """
    from matplotlib.figure import Figure

    names = chart.found_in(run)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    (_stack if chart.stacked else _lines)(axes, chart, run, names)
    axes.set_xlabel("optimizer step", fontsize=letters)
    axes.set_ylabel(chart.unit, fontsize=letters)
    axes.tick_params(labelsize=letters)
    axes.grid(color="#d5d5d5", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if title:
        axes.set_title(title, parse_math=False)
    if len(names) > 1 or chart.spread:
        _add_legend(axes, letters - 1)
    return figure


def _add_legend(axes: "Axes", letters: float) -> None:
    entries = len(axes.get_legend_handles_labels()[0])
    columns = min(entries, round(_LEGEND_COLUMNS_PER_INCH * axes.figure.get_figwidth()))
    legend = axes.figure.legend(fontsize=letters, frameon=False, loc="outside upper center", ncols=columns)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a name may contain dollar signs


def _lines(axes: "Axes", chart: Chart, run: RunRecord, names: list[str]) -> None:
    for index, name in enumerate(names):
        points = run.series(name)
        is_faint = chart.smoothed and index == 0
        axes.plot(
            list(points),
            list(points.values()),
            color=_COLOURS[index % len(_COLOURS)],
            linestyle=_STYLES[index % len(_STYLES)],
            linewidth=1.0 if is_faint else 1.4,
            alpha=0.4 if is_faint else None,
            marker="o" if len(points) == 1 or name.startswith("eval_") else None,
            markersize=4,
            label=chart.label(name),
        )
    first = run.series(names[0])
    if chart.smoothed:
        means = running_mean(list(first.values()))
        axes.plot(list(first), means, color=_COLOURS[0], linewidth=2, label="running mean")
    spreads = run.series(chart.spread) if chart.spread else {}
    if steps := [step for step in first if step in spreads]:
        low, high = ([first[step] + sign * spreads[step] for step in steps] for sign in (-1, 1))
        axes.fill_between(steps, low, high, color=_COLOURS[0], alpha=0.12, linewidth=0, label="± std of completions")


def running_mean(values: Sequence[float]) -> list[float]:
    """Mean of each value and those before it, over a window that grows with the length of the run."""
    width = max(1, len(values) // _SMOOTHING)
    windows = (values[max(0, end - width) : end] for end in range(1, len(values) + 1))
    return [sum(window) / len(window) for window in windows]


def _stack(axes: "Axes", chart: Chart, run: RunRecord, names: list[str]) -> None:
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


def _cut_outliers(axes: "Axes", steps: list[float], values: list[float], unit: str) -> None:
    """Cuts the axis where a few high values would flatten all others, and says how high they are."""
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


def _svg(figure: "Figure", salt: str) -> str:
    """The figure as an element of a page: text as text, ids unique to the chart, no XML preamble."""
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt, "font.family": "sans-serif"}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    return text[text.index("<svg") :]
