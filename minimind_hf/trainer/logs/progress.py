# SPDX-License-Identifier: Apache-2.0
"""The progress of a run: a few numbers that show whether it learns, and the time left.

On a terminal or in a notebook, this is a live bar. Where it is narrow, the bar is short and the last numbers are left
out; steps, time left and the first number always stay. Elsewhere (a log file, a pipe) it is plain lines: one for every
log if `logging_steps` is above 1, otherwise one every few seconds. Trackers and the log history get all numbers.
"""

import math
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import TrainerCallback
from transformers.trainer_utils import has_length

from ...language import AUTO, chosen, said, speaking

SHOWN = {
    "reward": "reward",
    "divergence": "divergence",
    "kl_ref": "kl_ref",
    "completions/mean_length": "length",
    "loss": "loss",
    "tokens_per_second": "tok/s",
}
SECONDS_BETWEEN_LINES = 5.0
WIDE = 110  # columns from which there is room for a long bar and the time that has passed
BAR, SHORT_BAR = 24, 10
SPEED_WINDOW = 600.0  # seconds; rich ignores older steps, and one step may take minutes


class RLProgressCallback(TrainerCallback):
    """Shows a few numbers and the time left, in the main process.

    Args:
        console (`rich.console.Console`, *optional*): Default: standard output.
        shown (`Mapping[str, str]`): The numbers by their names in the logs, most important first, and what the line
            calls them. Default: reward, KL, length, loss and tokens per second.
        language (`str`, *optional*): `"en"`, `"zh"` or `"auto"`. Default: that of the settings, or else `"auto"`.
    """

    def __init__(
        self,
        console: Console | None = None,
        shown: Mapping[str, str] = SHOWN,
        language: str | None = None,
    ):
        self._console = console or Console()
        self._shown = shown
        self._given_language = language
        self._progress: Progress | None = None
        self._start = (0, 0.0)  # step and time
        self._last_line = -math.inf
        self._known: dict[str, float] = {}  # PPO logs every step, but measures rewards only at rollouts

    def on_train_begin(self, args, state, control, **kwargs):
        if not state.is_world_process_zero:
            return
        self._start = (state.global_step, time.monotonic())
        self._last_line = -math.inf
        self._known = {}
        self._language = chosen(self._given_language or getattr(args, "language", AUTO))
        is_wide = self._console.width >= WIDE
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=BAR if is_wide else SHORT_BAR),
            MofNCompleteColumn(),
            *([TimeElapsedColumn()] if is_wide else []),
            TimeRemainingColumn(),
            TextColumn("{task.fields[measured]}", markup=False),
            console=self._console,
            disable=not self._is_live,
            speed_estimate_period=SPEED_WINDOW,
        )
        self._training = self._progress.add_task(
            self._said("training"), total=state.max_steps, completed=state.global_step, measured=""
        )
        self._evaluation = None
        self._progress.start()

    @property
    def _is_live(self) -> bool:
        return self._console.is_terminal or self._console.is_jupyter

    def on_step_end(self, args, state, control, **kwargs):
        if self._progress is not None:
            self._progress.update(self._training, completed=state.global_step)

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs):
        if self._progress is None or not has_length(eval_dataloader):
            return
        if self._evaluation is None:
            self._evaluation = self._progress.add_task(
                self._said("evaluation"), total=len(eval_dataloader), measured=""
            )
        self._progress.advance(self._evaluation)

    def on_evaluate(self, args, state, control, **kwargs):
        if self._progress is not None and self._evaluation is not None:
            self._progress.remove_task(self._evaluation)
            self._evaluation = None

    def on_log(self, args, state, control, logs=None, **kwargs):
        if self._progress is None or not logs:
            return
        if "loss" in logs:
            self._known |= logs
            self._show(state, self._short(self._known))
            return
        prefix = _evaluation_prefix(logs)
        if evaluated := self._said(", ").join(self._short(logs, prefix)):
            name = prefix.removeprefix("eval_").removesuffix("_")
            text = "step {step}, evaluation of {name}: {measured}" if name else "step {step}, evaluation: {measured}"
            line = self._said(text, step=state.global_step, name=name, measured=evaluated)
            self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def on_train_end(self, args, state, control, **kwargs):
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _show(self, state, measured: list[str]) -> None:
        self._progress.update(self._training, measured=_fitting(measured, self._room(state.max_steps)))
        now = time.monotonic()
        is_due = now - self._last_line >= SECONDS_BETWEEN_LINES or state.logging_steps > 1
        if self._is_live or not (is_due or state.global_step >= state.max_steps):
            return
        self._last_line = now
        line = self._said(
            "step {step}/{steps}: {measured}, {time} left",
            step=state.global_step,
            steps=state.max_steps,
            measured=self._said(", ").join(measured),
            time=self._left(state, now),
        )
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _said(self, text: str, **values: Any) -> str:
        with speaking(self._language):
            return said(text, **values)

    def _room(self, steps: int) -> int:
        """Columns for numbers, beside description, bar, steps and times, each followed by a space."""
        is_wide = self._console.width >= WIDE
        others = [len("evaluation"), BAR if is_wide else SHORT_BAR, len(f"{steps}/{steps}"), *[8] * (1 + is_wide)]
        return self._console.width - sum(others) - len(others)

    def _short(self, logs: dict, prefix: str = "") -> list[str]:
        return [f"{label} {logs[prefix + name]:.3g}" for name, label in self._shown.items() if prefix + name in logs]

    def _left(self, state, now: float) -> timedelta:
        first_step, started = self._start
        seconds_per_step = (now - started) / max(state.global_step - first_step, 1)
        return timedelta(seconds=round(seconds_per_step * (state.max_steps - state.global_step)))


def _evaluation_prefix(logs: dict) -> str:
    """`eval_`, followed by the name of the data set if there are several."""
    times = (name for name in logs if name.startswith("eval_") and name.endswith("_runtime"))
    return next(times, "eval_runtime").removesuffix("runtime")


def _fitting(measured: list[str], room: int) -> str:
    """The first number, and the further ones for which there is room."""
    while len(measured) > 1 and len(", ".join(measured)) > room:
        measured = measured[:-1]
    return ", ".join(measured)
