# SPDX-License-Identifier: Apache-2.0
"""The health check as a callback: it reports what the monitor finds in the logs of a run."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from transformers import TrainerCallback
from transformers.utils import logging

from ...health.monitor import HealthMessage, HealthMonitor, read_health
from ...health.rules import NOT_FINITE
from ...reports.record import HEALTH_FILE, write_lines

logger = logging.get_logger(__name__)


class HealthCallback(TrainerCallback):
    """Reports on the main process what the monitor finds.

    Args:
        folder (`str` or `Path`): The run's folder.

    Attributes:
        messages (`list[HealthMessage]`): All of this run, those before a resume too.
    """

    def __init__(self, folder: str | Path):
        self.path = Path(folder) / HEALTH_FILE
        self.messages: list[HealthMessage] = []
        self._monitor = HealthMonitor()

    def on_train_begin(self, args, state, control, **kwargs):
        """Goes on where the logs end: what comes after the checkpoint of a resume has not happened."""
        self._monitor = HealthMonitor()
        for log in state.log_history:
            if _is_of_training(log):
                self._monitor.observe(log["step"], log)
        if state.is_world_process_zero:
            earlier = read_health(self.path) if state.global_step > 0 else []
            self.messages = [m for m in earlier if m.step <= state.global_step or m.rule == NOT_FINITE]
            self._write()

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and _is_of_training(logs):
            for message in self._monitor.observe(state.global_step, logs):
                self.report(message, state.is_world_process_zero)

    def report(self, message: HealthMessage, is_main_process: bool) -> None:
        """Keeps, writes and prints a message."""
        if is_main_process:
            self.messages.append(message)
            self._write()
            logger.warning("%s", message)

    def _write(self) -> None:
        if self.messages or self.path.exists():  # the report reads the whole text
            write_lines(self.path, [{**asdict(message), "message": message.text} for message in self.messages])


def _is_of_training(log: Mapping[str, float]) -> bool:
    return "loss" in log
