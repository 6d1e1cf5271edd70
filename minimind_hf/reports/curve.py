# SPDX-License-Identifier: Apache-2.0
"""A run as a picture: its rewards, drawn from the Trainer's log history without touching matplotlib's global state."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .record import series

_SMOOTHING = 20  # the smoothed curve averages about a twentieth of the run


def plot_reward_curve(log_history: Sequence[Mapping[str, Any]], path: str | Path, title: str = "Reward") -> Path:
    """Draws reward over optimizer steps, with the spread over completions, and evaluations where there were any.

    Args:
        log_history (`Sequence[Mapping]`): `trainer.state.log_history`.
        path (`str` or `Path`): The image to write; its ending chooses the format. Missing folders are made.
        title (`str`): Stands above the curve.

    Returns:
        `Path`: What was written.

    Raises:
        ValueError: If no log holds a reward.
    """
    rewards = series(log_history, "reward")
    if not rewards:
        raise ValueError(
            f"None of the {len(log_history)} logs holds 'reward', so there is no curve to draw. Train for at least "
            "logging_steps steps first."
        )
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _draw_training(axes, rewards, series(log_history, "reward_std"))
    if evaluations := series(log_history, "eval_reward"):
        axes.plot(*_columns(evaluations), "o", color="tab:green", label="evaluation")
    axes.set(title=title, xlabel="optimizer step", ylabel="reward")
    axes.grid(alpha=0.3)
    axes.legend()
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path


def _draw_training(axes: Axes, rewards: dict[int, float], spreads: dict[int, float]) -> None:
    steps, values = _columns(rewards)
    low = [value - spreads.get(step, 0.0) for step, value in rewards.items()]
    high = [value + spreads.get(step, 0.0) for step, value in rewards.items()]
    axes.fill_between(steps, low, high, color="tab:blue", alpha=0.1, linewidth=0, label="± std of completions")
    axes.plot(steps, values, color="tab:blue", alpha=0.4, linewidth=1, label="mean")
    axes.plot(steps, _running_mean(values), color="tab:blue", linewidth=2, label="running mean")


def _columns(series: dict[int, float]) -> tuple[list[int], list[float]]:
    return list(series), list(series.values())


def _running_mean(values: Sequence[float]) -> list[float]:
    """Mean of each value and those before it, over a window that grows with the length of the run."""
    width = max(1, len(values) // _SMOOTHING)
    windows = (values[max(0, end - width) : end] for end in range(1, len(values) + 1))
    return [sum(window) / len(window) for window in windows]
