# SPDX-License-Identifier: Apache-2.0
"""Probe prompts: answers to the same few prompts along the run, drawn with the same random numbers each time.

What differs between two answers is what training has changed. Nothing that the run itself draws depends on them: the
noise of sampling is a function of seed, completion and position, and the random states of reward functions are put
back. They are answered with the weights that the engine has, or would get for its next rollout.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from ..data.streams import PromptStream
from ..reports.record import PROBES, SAMPLES_FOLDER
from .experience.experience import Experience
from .logs.probes import ProbeCallback
from .metrics import Metrics
from .steps import FourSteps

_PROBES = 2**31  # takes the place of the rollout's number in the seeds of training


class Probing(FourSteps):
    """Mixin of [`RLTrainer`]: `probe_prompts`."""

    def prepare_probes(self) -> None:
        """Chooses the probe prompts, and asks for their answers along the run.

        Raises:
            ValueError: If the prompts are a stream, in which there are no first ones to come back to, or completions
                come from a `rollout_func`, which may draw random numbers of its own.
        """
        args = self.args
        if not args.probe_prompts:
            return
        if self.rollout_func is not None:
            raise ValueError(
                f"probe_prompts={args.probe_prompts}, but completions come from a rollout_func, whose random numbers "
                "are not known here. Leave probe_prompts at 0."
            )
        held_out = self.eval_dataset
        prompts = next(iter(held_out.values())) if isinstance(held_out, dict) else held_out or self.train_dataset
        if prompts is None or isinstance(prompts, PromptStream):
            raise ValueError(
                f"probe_prompts={args.probe_prompts}, but train_dataset is a stream and there is no eval_dataset, so "
                "no prompts stay the same. Pass an eval_dataset, or leave probe_prompts at 0."
            )
        self._probes = [prompts[number] for number in range(min(args.probe_prompts, len(prompts)))]
        path = Path(args.output_dir) / SAMPLES_FOLDER / PROBES
        self.add_callback(ProbeCallback(path, args.probe_steps, self.answer_probes, self.scorer.names))

    @torch.no_grad()
    def answer_probes(self) -> Experience:
        """Answers the probe prompts, and scores the answers; every process calls it."""
        seed, step = self.sampling_seed(_PROBES), self.state.global_step
        experience = Experience(self._probes, 1, seed, step, metrics=Metrics())
        with self.metrics.clock_stopped(), _same_random_numbers():
            self.rollout(experience)
            self.score(experience)
        return experience


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    """What follows draws the random numbers that it would draw without the body."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        yield
    random.setstate(python)
    np.random.set_state(numpy)
