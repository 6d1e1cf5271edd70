# SPDX-License-Identifier: Apache-2.0
"""The health check as a callback: it reports the findings of the monitor in the logs of a run."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from transformers import TrainerCallback, TrainerState
from transformers.utils import logging

from ...health.checks import engine_mismatch
from ...health.monitor import HealthMessage, HealthMonitor, message_of, read_health
from ...health.rules import NOT_FINITE, RULES
from ...language import Text, Texts, chosen
from ...reports.record import HEALTH_FILE, write_lines
from ...rollout import EngineMismatchError
from ..checkpoints.run_folder import last_checkpoint
from ..models.weights import NotFiniteError

logger = logging.get_logger(__name__)


class HealthCallback(TrainerCallback):
    """Reports the findings of the monitor, in the main process.

    Args:
        folder (`str` or `Path`): Output folder of the run.
        language (`str`): Of the messages: `"en"`, `"zh"` or `"auto"`.

    Attributes:
        messages (`list[HealthMessage]`): All messages of this run, including those before a resume.
    """

    def __init__(self, folder: str | Path, language: str = "en"):
        self.path = Path(folder) / HEALTH_FILE
        self.language = chosen(language)
        self.messages: list[HealthMessage] = []
        self._monitor = HealthMonitor(language=self.language)

    def on_train_begin(self, args, state, control, **kwargs):
        """Continues where the logs end. Messages after the checkpoint of a resume are dropped."""
        self._monitor = HealthMonitor(language=self.language)
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
        """Stores, writes and prints a message."""
        if is_main_process:
            self.messages.append(message)
            self._write()
            logger.warning("%s", message)

    def stop(self, found: Text, state: TrainerState) -> None:
        """Reports a value that is not finite, and ends the run.

        Args:
            found (`Text`): Description of the value and its place.
            state (`TrainerState`): State before the update.

        Raises:
            NotFiniteError: In every process.
        """
        rule = next(rule for rule in RULES if rule.name == NOT_FINITE)
        described = (rule, state.global_step + 1, Texts(found, *what_remains(self.path.parent), between="; "))
        self.report(message_of(*described, self.language), state.is_world_process_zero)
        raise NotFiniteError(str(message_of(*described)))

    def _write(self) -> None:
        if self.messages or self.path.exists():  # the report reads the full text
            write_lines(self.path, [{**asdict(message), "message": message.text} for message in self.messages])


WRONG_WEIGHTS = (
    "restart the server with the model that is trained, and see that it loads the weights it is sent "
    "(rollout_weight_sync, rollout_sync_dir)",
    "if engine and trainer may differ as much, raise max_sampling_k3 (None: no bound)",
)


def stop_for_engine(k3: float, limit: float, state: TrainerState, health: HealthCallback | None, folder: str) -> None:
    """Ends a run whose engine samples from other weights than the trainer's, before it trains on the completions.

    Args:
        k3 (`float`): Mean `sampling/k3` of the step.
        limit (`float`): `max_sampling_k3`.
        state (`TrainerState`): Before the update.
        health ([`HealthCallback`], *optional*): Keeps the message.
        folder (`str`): The output folder.

    Raises:
        EngineMismatchError: In every process.
    """
    rule = next(rule for rule in RULES if rule.check is engine_mismatch)
    found = Text(
        "sampling/k3 of the completions is {k3:.3g} nats per token, above max_sampling_k3={limit:g}, so they were "
        "drawn from other weights than the trainer's",
        k3=k3,
        limit=limit,
    )
    described = (rule, state.global_step + 1, Texts(found, *what_remains(Path(folder)), between="; "))
    if health is not None:
        health.report(message_of(*described, health.language, WRONG_WEIGHTS), state.is_world_process_zero)
    raise EngineMismatchError(str(message_of(*described, remedies=WRONG_WEIGHTS)))


def _is_of_training(log: Mapping[str, float]) -> bool:
    return "loss" in log


def what_remains(output_dir: Path) -> tuple[Text, Text]:
    """Describes where a stopped run can be resumed."""
    return Text("the update was not made"), last_checkpoint(output_dir)
