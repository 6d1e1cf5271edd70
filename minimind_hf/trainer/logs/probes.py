# SPDX-License-Identifier: Apache-2.0
"""Probe prompts: the same few prompts, answered at the start of a run, every so many steps and at its end."""

import json
from collections.abc import Callable
from pathlib import Path

from transformers import TrainerCallback

from ...reports.record import read_lines, write_lines
from ..experience.experience import Experience
from .completions import completion_row


class ProbeCallback(TrainerCallback):
    """Asks for the answers in every process; the main process writes them.

    Args:
        path (`Path`): A file with one answer per line.
        steps (`int`): Optimizer steps between two rounds.
        answer (`Callable[[], Experience]`): Makes the answers, with rewards, and changes nothing in the run.
        signal_names (`list[str]`): Names of the reward functions.
    """

    def __init__(self, path: Path, steps: int, answer: Callable[[], Experience], signal_names: list[str]):
        self.path = path
        self._steps, self._answer, self._signal_names = steps, answer, signal_names

    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            kept = [row for row in read_lines(self.path, grows=True) if row["step"] <= state.global_step]
            if state.global_step and kept:
                write_lines(self.path, kept)
            else:
                self.path.unlink(missing_ok=True)
        if state.global_step == 0:
            self._ask(state)

    def on_step_end(self, args, state, control, **kwargs):
        is_last = state.global_step >= state.max_steps or control.should_training_stop
        if is_last or state.global_step % self._steps == 0:
            self._ask(state)

    def _ask(self, state) -> None:
        experience = self._answer()
        if not state.is_world_process_zero:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            for index in range(len(experience.rollouts)):
                row = completion_row(experience, index, self._signal_names)
                file.write(json.dumps({"step": state.global_step, "probe": index, **row}, ensure_ascii=False) + "\n")
