# SPDX-License-Identifier: Apache-2.0
"""The files that every run leaves for people, whatever it learns from: run.json, log.jsonl, record of its end, report.

The report is made from the other files; `reports/record.py` lists and reads them.
"""

import json
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_utils import IntervalStrategy
from transformers.utils import logging

from ...atomic import whole_file
from ...language import speaking
from ...reports.diagnosis import without_secrets
from ...reports.page import write_report
from ...reports.record import ERROR_FILE, HEALTH_FILE, LOG_FILE, RUN_FILE, STATE_FILE, write_json, write_lines
from .closing import closing_lines

logger = logging.get_logger(__name__)


class RunFiles(TrainerCallback):
    """Writes the files of one run, and at its end their report. Every process has one; only the main one writes.

    Args:
        args (`TrainingArguments`): Settings.
        accelerator: Connects the processes.
        describe (`Callable[[], dict]`): Returns what run.json says of the run.
        language (`str`): Of the report and of the last lines: `"en"`, `"zh"` or `"auto"`.

    Attributes:
        says_where (`bool`): Whether training ends with where report, model and completions are; no if what follows
            says it.
    """

    def __init__(
        self, args: TrainingArguments, accelerator: Accelerator, describe: Callable[[], dict[str, Any]], language: str
    ):
        self._args, self._accelerator, self._folder = args, accelerator, Path(args.output_dir)
        self._describe, self._language = describe, language
        self.says_where = True

    def on_train_begin(self, args, state, control, **kwargs):
        if not state.is_world_process_zero:
            return
        if not getattr(args, "health", False) and state.global_step == 0:
            (self._folder / HEALTH_FILE).unlink(missing_ok=True)  # from an earlier run in this folder
        (self._folder / ERROR_FILE).unlink(missing_ok=True)  # from the run before
        write_json(self._folder / RUN_FILE, self._describe())
        self._begin_log(state)

    def _begin_log(self, state: TrainerState) -> None:
        """The log goes on where a resumed run's does."""
        if state.log_history:
            write_lines(self._folder / LOG_FILE, state.log_history)
        else:
            (self._folder / LOG_FILE).unlink(missing_ok=True)

    def on_log(self, args, state, control, **kwargs):
        """Adds the log to its file, from which a report of the running run is made."""
        if state.is_world_process_zero and state.log_history:
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / LOG_FILE).open("a", encoding="utf-8") as file:
                file.write(json.dumps(state.log_history[-1], ensure_ascii=False, default=float) + "\n")

    def on_step_end(self, args, state, control, **kwargs):
        """The last steps are logged too where logging_steps would leave them out."""
        is_last = state.global_step >= state.max_steps or control.should_training_stop
        if is_last and args.logging_strategy != IntervalStrategy.NO:
            control.should_log = True
        return control

    @contextmanager
    def recording(self, state_of_run: Callable[[], TrainerState]) -> Iterator[None]:
        """Writes the files of the report when the run in the context ends, even with an error."""
        try:
            yield
        except BaseException as error:
            self._end_after(error, state_of_run())
            raise
        self._end(state_of_run())
        if self.says_where and self._accelerator.is_main_process and not self._args.disable_tqdm:
            with speaking(self._language):
                print("\n".join(closing_lines(self._folder)), flush=True)

    def write_samples(self) -> None:
        """Writes what a run keeps of its completions; the main process calls it at the end, before the report."""

    def _end(self, state: TrainerState) -> None:
        if self._accelerator.is_main_process and state.log_history:
            self.write_samples()
            with whole_file(self._folder / STATE_FILE) as path:
                state.save_to_json(str(path))
            self._report()

    def _report(self) -> None:
        """Writes the page. The run is over and its model may not be saved yet, so an error here does not end it."""
        try:
            write_report(self._folder, language=self._language)
        except Exception as error:
            logger.error(
                "The run is complete, but its report could not be written (%s: %s). Try again with: minimind-hf "
                "report %s",
                type(error).__name__,
                error,
                self._folder,
            )

    def _end_after(self, error: BaseException, state: TrainerState) -> None:
        """As `_end`, after an error: a second error is only logged, so that the user sees the first one."""
        try:
            self._end(state)
            if self._accelerator.is_main_process and self._folder.is_dir():
                write_json(self._folder / ERROR_FILE, described_error(error, state.global_step))
        except Exception as second:
            logger.error(
                "After %s the record of the run could not be written to %s: %s: %s",
                type(error).__name__,
                self._folder,
                type(second).__name__,
                second,
            )


def described_error(error: BaseException, step: int) -> dict[str, Any]:
    """What `minimind-hf doctor` shows of an error: where it came from, innermost last, without local values."""
    places = traceback.extract_tb(error.__traceback__)[-6:]
    where = [f"{Path(place.filename).name}:{place.lineno} {place.name}" for place in places]
    described = {"type": type(error).__name__, "message": str(error), "step": step, "where": where}
    return without_secrets(described)
