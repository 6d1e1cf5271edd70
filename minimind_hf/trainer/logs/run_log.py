# SPDX-License-Identifier: Apache-2.0
"""The files that a run writes for people: completions, samples, trackers, run.json, record of its end, report.

The report is made from the other files; `reports/record.py` lists and reads them.
"""

import json
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainerState
from transformers.trainer_utils import IntervalStrategy
from transformers.utils import logging

from ...atomic import whole_file
from ...language import speaking
from ...reports.diagnosis import without_secrets
from ...reports.page import write_report
from ...reports.record import (
    COMPLETIONS_FOLDER,
    DISTRIBUTIONS,
    ERROR_FILE,
    HEALTH_FILE,
    LOG_FILE,
    RUN_FILE,
    SAMPLES_FOLDER,
    STATE_FILE,
    TOKENS,
    write_json,
    write_lines,
)
from ..experience.experience import Experience
from ..settings.base import RLConfig
from ..settings.given import given_settings
from .closing import closing_lines
from .completions import CompletionLog, SampleLog, print_debug
from .distributions import DistributionLog
from .tokens import TokenLog
from .trackers import Trackers

logger = logging.get_logger(__name__)


class RunLog(TrainerCallback):
    """Writes the files of one run, and at its end their report. Every process has one; only the main one writes.

    Args:
        args ([`RLConfig`]): Settings.
        accelerator: Connects the processes.
        signal_names (`list[str]`): Names of the reward functions.
        tokenizer: Decodes prompts for debug output.
        callbacks (`Sequence[TrainerCallback]`): The trainer's callbacks, including those of trackers.
        describe (`Callable[[], dict]`): Returns algorithm and settings of the run, for run.json.

    Attributes:
        says_where (`bool`): Whether training ends with where report, model and completions are; no if what follows
            says it.
    """

    def __init__(
        self,
        args: RLConfig,
        accelerator: Accelerator,
        signal_names: list[str],
        tokenizer: PreTrainedTokenizerBase,
        callbacks: Sequence[TrainerCallback],
        describe: Callable[[], dict[str, Any]],
    ):
        folder = Path(args.output_dir)
        self._args, self._accelerator, self._folder = args, accelerator, folder
        self._signal_names, self._tokenizer, self._describe = signal_names, tokenizer, describe
        self.samples = SampleLog(folder / SAMPLES_FOLDER, signal_names, tokenizer)
        self.trackers = Trackers(args, callbacks, accelerator.is_main_process)
        self._completions = CompletionLog(
            folder / COMPLETIONS_FOLDER,
            signal_names,
            args.num_completions_to_print,
            args.log_unique_prompts,
            args.completions_interval,
        )
        self._distributions = DistributionLog(folder / SAMPLES_FOLDER / DISTRIBUTIONS)
        self.tokens = TokenLog(folder / SAMPLES_FOLDER / TOKENS, tokenizer, accelerator.is_main_process)
        self._next_debug_step = 0
        self.says_where = True

    def on_train_begin(self, args, state, control, **kwargs):
        self.trackers.have_started()
        if not state.is_world_process_zero:
            return
        if not args.health and state.global_step == 0:
            (self._folder / HEALTH_FILE).unlink(missing_ok=True)  # from an earlier run in this folder
        (self._folder / ERROR_FILE).unlink(missing_ok=True)  # from the run before
        write_json(self._folder / RUN_FILE, {**self._describe(), "changed": changed_settings(args)})
        self._distributions.begin(state.global_step)
        self.tokens.begin(state.global_step)
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

    def add(self, experience: Experience, is_last: bool = False) -> None:
        """Records a rollout that is about to be trained on; `is_last` if it is the last one of the run."""
        self._distributions.add(experience)
        if self._args.log_completions:
            self._completions.add(experience)
        if not self._accelerator.is_main_process:
            return
        step = experience.step + 1  # the first step that trains on it, counted as in logs
        self.samples.add(experience, step)
        self.tokens.add(experience, step, is_last)
        if self._args.debug_mode and experience.step >= self._next_debug_step:
            interval = self._args.debug_interval
            self._next_debug_step = experience.step - experience.step % interval + interval
            print_debug(experience, self._signal_names, self._tokenizer, step)

    def flush(self, step: int) -> None:
        """Shows and writes the completions since the last log; every process calls it."""
        self._distributions.flush(self._accelerator, step)
        if self._args.log_completions:
            rows = self._completions.flush(self._accelerator, step)
            self.trackers.log_completions(rows, step)

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
            with speaking(self._args.language):
                print("\n".join(closing_lines(self._folder)), flush=True)

    def _end(self, state: TrainerState) -> None:
        if self._accelerator.is_main_process and state.log_history:
            self.samples.end()
            self.tokens.write()
            with whole_file(self._folder / STATE_FILE) as path:
                state.save_to_json(str(path))
            self._report()

    def _report(self) -> None:
        """Writes the page. The run is over and its model may not be saved yet, so an error here does not end it."""
        try:
            write_report(self._folder, language=self._args.language)
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


def changed_settings(args: RLConfig) -> dict[str, Any]:
    """The settings that the user gave or changed, with their values now; not what follows from others, no secrets."""
    values = args.to_dict()
    changed = {name: values[name] for name in given_settings(args) if name in values}
    return json.loads(json.dumps(changed, default=str))


def described_error(error: BaseException, step: int) -> dict[str, Any]:
    """What `minimind-hf doctor` shows of an error: where it came from, innermost last, without local values."""
    places = traceback.extract_tb(error.__traceback__)[-6:]
    where = [f"{Path(place.filename).name}:{place.lineno} {place.name}" for place in places]
    described = {"type": type(error).__name__, "message": str(error), "step": step, "where": where}
    return without_secrets(described)
