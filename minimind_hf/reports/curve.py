# SPDX-License-Identifier: Apache-2.0
"""The reward curve of a run as a picture, for its model card and for the README."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..atomic import whole_file
from .charts import Chart, figure_of
from .record import RunRecord

_CURVE = Chart(
    "Reward",
    ("reward", "eval_reward"),
    unit="reward",
    spread="reward_std",
    smoothed=True,
    label=lambda name: {"reward": "mean", "eval_reward": "evaluation"}[name],
)


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
        figure = figure_of(_CURVE, run, title, size=(8, 4.5), letters=10)
        figure.savefig(unfinished, format=path.suffix.lstrip(".") or "png", dpi=120)
    return path
