# SPDX-License-Identifier: Apache-2.0
"""Training health: watches the logs of a run and says in one line what is wrong and what to try.

A message comes once per episode: when its rule begins to apply, and again only after it has not applied for some logs.
Messages are kept, written to OUTPUT_DIR/health.jsonl, and survive a resume. The rules are those of `health_rules`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from transformers import TrainerCallback
from transformers.utils import logging

from .health_checks import LIMITS, Curves, Limits
from .health_rules import NOT_FINITE, RULES, Rule
from .run_record import HEALTH_FILE, write_lines

logger = logging.get_logger(__name__)

EPISODE_ENDS_AFTER = 10  # logs in which the rule does not apply


@dataclass(frozen=True)
class HealthMessage:
    """One thing that was wrong, once.

    Args:
        step (`int`): Optimizer step of the log.
        rule (`str`): Name of the rule.
        title (`str`): What is wrong.
        found (`str`): The numbers.
        advice (`str`): What to try.
    """

    step: int
    rule: str
    title: str
    found: str
    advice: str

    @property
    def text(self) -> str:
        return f"{self.title}: {self.found}. Try: {self.advice}."

    def __str__(self) -> str:
        return f"step {self.step}: {self.text}"


def message_of(rule: Rule, step: int, found: str) -> HealthMessage:
    return HealthMessage(step, rule.name, rule.title, found, "; or ".join(rule.remedies))


class HealthMonitor:
    """Follows the curves of one run: a pure function of its logs.

    Args:
        rules (`Sequence[Rule]`): What is looked for.
        limits ([`Limits`]): Their thresholds.
    """

    def __init__(self, rules: Sequence[Rule] = RULES, limits: Limits = LIMITS):
        self.rules = rules
        self.limits = limits
        self.curves = Curves()
        self._quiet_for: dict[str, int] = {}  # by the rules in an episode: logs since they applied

    def observe(self, step: int, log: Mapping[str, float]) -> list[HealthMessage]:
        """Takes a log of training and returns what has begun to be wrong."""
        self.curves.add(log)
        messages = []
        for rule in self.rules:
            found = rule.check(self.curves, self.limits)
            if found is None:
                self._end_if_quiet(rule.name)
                continue
            if rule.name not in self._quiet_for:
                messages.append(message_of(rule, step, found))
            self._quiet_for[rule.name] = 0
        return messages

    def _end_if_quiet(self, name: str) -> None:
        if name in self._quiet_for:
            self._quiet_for[name] += 1
            if self._quiet_for[name] >= EPISODE_ENDS_AFTER:
                del self._quiet_for[name]


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


def read_health(path: str | Path) -> list[HealthMessage]:
    """The messages of a run.

    Args:
        path (`str` or `Path`): The file, or the run's folder.

    Returns:
        `list[HealthMessage]`: Empty where nothing was wrong.
    """
    path = Path(path)
    path = path / HEALTH_FILE if path.is_dir() else path
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [HealthMessage(**{name: value for name, value in line.items() if name != "message"}) for line in lines]


def _is_of_training(log: Mapping[str, float]) -> bool:
    return "loss" in log
