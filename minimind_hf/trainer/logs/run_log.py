# SPDX-License-Identifier: Apache-2.0
"""What a run that makes rollouts writes besides the files of every run: completions, samples, tokens, trackers."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from transformers import PreTrainedTokenizerBase, TrainerCallback

from ...reports.record import COMPLETIONS_FOLDER, DISTRIBUTIONS, SAMPLES_FOLDER, TOKENS
from ..experience.experience import Experience
from ..settings.base import RLConfig
from ..settings.given import given_settings
from .completions import CompletionLog, SampleLog, print_debug
from .distributions import DistributionLog
from .run_files import RunFiles
from .tokens import TokenLog
from .trackers import Trackers


class RunLog(RunFiles):
    """Writes the files of one run, and at its end their report. Every process has one; only the main one writes.

    Args:
        args ([`RLConfig`]): Settings.
        accelerator: Connects the processes.
        signal_names (`list[str]`): Names of the reward functions.
        tokenizer: Decodes prompts for debug output.
        callbacks (`Sequence[TrainerCallback]`): The trainer's callbacks, including those of trackers.
        describe (`Callable[[], dict]`): Returns algorithm and settings of the run, for run.json.
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
        super().__init__(args, accelerator, lambda: {**describe(), "changed": changed_settings(args)}, args.language)
        folder = Path(args.output_dir)
        self._signal_names, self._tokenizer = signal_names, tokenizer
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

    def on_train_begin(self, args, state, control, **kwargs):
        self.trackers.have_started()
        super().on_train_begin(args, state, control, **kwargs)
        if state.is_world_process_zero:
            self._distributions.begin(state.global_step)
            self.tokens.begin(state.global_step)

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

    def write_samples(self) -> None:
        self.samples.end()
        self.tokens.write()


def changed_settings(args: RLConfig) -> dict[str, Any]:
    """The settings that the user gave or changed, with their values now; not what follows from others, no secrets."""
    values = args.to_dict()
    changed = {name: values[name] for name in given_settings(args) if name in values}
    return json.loads(json.dumps(changed, default=str))
