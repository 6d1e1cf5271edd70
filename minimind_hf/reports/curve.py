# SPDX-License-Identifier: Apache-2.0
"""The reward curve of a run as a picture, for its model card and for the README.

Lines differ in style as well as in colour, so that a printed picture can be read. Nothing here touches the state that
matplotlib's pyplot shares between all figures.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..atomic import whole_file
from .charts import running_mean
from .record import RunRecord

if TYPE_CHECKING:  # matplotlib takes half a second to import: not before there is a run to draw
    from matplotlib.figure import Figure

TRAINING_COLOUR, EVALUATION_COLOUR = "#1f4e9e", "#c0392b"
_LETTERS = 10  # points


def plot_reward_curve(log_history: Sequence[Mapping[str, Any]], path: str | Path, title: str = "Reward") -> Path:
    """Draws the reward over optimizer steps, its spread over completions, and any evaluations.

    Args:
        log_history (`Sequence[Mapping]`): `trainer.state.log_history`.
        path (`str` or `Path`): The picture to write. Its suffix chooses the format. Missing folders are made.
        title (`str`): Heading above the curve.

    Returns:
        `Path`: The picture.

    Raises:
        ValueError: If no log contains a reward.
    """
    run = RunRecord("", list(log_history))
    if not run.series("reward"):
        raise ValueError(
            f"None of the {len(log_history)} logs contains 'reward', so there is no curve to draw. Train for at least "
            "logging_steps steps first."
        )
    path = Path(path)
    with whole_file(path) as unfinished:
        figure = reward_figure(run, title)
        figure.savefig(unfinished, format=path.suffix.lstrip(".") or "png", dpi=120)
    return path


def reward_figure(run: RunRecord, title: str) -> "Figure":
    """The reward of a run that has logged one: faint, with its running mean, its spread, and evaluations as points."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    rewards, spreads = run.series("reward"), run.series("reward_std")
    steps, values = list(rewards), list(rewards.values())
    axes.plot(steps, values, color=TRAINING_COLOUR, linewidth=1, alpha=0.4, **_dots(steps), label="mean")
    if evaluated := run.series("eval_reward"):
        line = {"color": EVALUATION_COLOUR, "linestyle": "--", "linewidth": 1.4, "marker": "o", "markersize": 4}
        axes.plot(list(evaluated), list(evaluated.values()), **line, label="evaluation")
    axes.plot(steps, running_mean(values), color=TRAINING_COLOUR, linewidth=2, label="running mean")
    if steps := [step for step in rewards if step in spreads]:
        low, high = ([rewards[step] + sign * spreads[step] for step in steps] for sign in (-1, 1))
        axes.fill_between(steps, low, high, color=TRAINING_COLOUR, alpha=0.12, lw=0, label="± std of completions")
    axes.set_xlabel("optimizer step", fontsize=_LETTERS)
    axes.set_ylabel("reward", fontsize=_LETTERS)
    axes.tick_params(labelsize=_LETTERS)
    axes.grid(color="#d5d5d5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, parse_math=False)
    figure.legend(fontsize=_LETTERS - 1, frameon=False, loc="outside upper center", ncols=4)
    return figure


def _dots(points: Sequence[int]) -> dict[str, Any]:
    """A single point is no line."""
    return {"marker": "o", "markersize": 4} if len(points) == 1 else {}
