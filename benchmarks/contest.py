# SPDX-License-Identifier: Apache-2.0
"""Runs trainers in separate processes, which take turns to make one step each.

This keeps the memory of each apart, and other load on the machine affects all alike.
"""

import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

import torch
from transformers import Trainer, TrainerCallback

Answer = dict[str, Any]
Maker = Callable[[str, "Phases"], Trainer]


class Phases(dict):
    """Seconds of the phases of a step by name, and anything else that the step reports."""

    def time(self, name: str, function: Callable) -> Callable:
        """Wraps a function so that its seconds add up under a name."""

        def run(*args, **kwargs):
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self[name] = self.get(name, 0.0) + time.perf_counter() - start

        return run


class StepClock(TrainerCallback):
    """Makes a step on request, and reports its seconds, its phases, and the peak memory so far."""

    def __init__(self, connection: Connection, phases: Phases):
        self.connection = connection
        self.phases = phases

    def on_train_begin(self, args, state, control, **kwargs):
        self._wait()

    def on_step_end(self, args, state, control, **kwargs):
        step, cpu = time.perf_counter() - self.start, time.process_time() - self.cpu_start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        self.connection.send({"step": step, "cpu": cpu, "peak_mb": peak, **self.phases})
        self._wait()

    def _wait(self):
        self.connection.recv()
        self.phases.clear()
        self.start, self.cpu_start = time.perf_counter(), time.process_time()


def contest(
    makers: dict[str, Maker], repeats: int, threads: int, environments: dict[str, dict[str, str]] | None = None
) -> dict[str, list[Answer]]:
    """Lets each side make a step to warm up, then `repeats` of them, all sides in turn.

    Args:
        makers (`dict[str, Callable]`): By side; called in its process with an output folder and the phases, returns a
            trainer of `repeats + 1` steps.
        repeats (`int`), threads (`int`): How many steps are counted, and with how many threads.
        environments (`dict[str, dict[str, str]]`, *optional*): By side, variables that its process starts with.

    Returns:
        `dict[str, list[dict]]`: By side, the report of each counted step.
    """
    context = multiprocessing.get_context("spawn")
    ends, processes = {}, []
    for side, maker in makers.items():
        ends[side], other = context.Pipe()
        processes.append(context.Process(target=_serve, args=(other, maker, threads), daemon=True))
        with patch.dict(os.environ, (environments or {}).get(side, {})):
            processes[-1].start()
        other.close()  # so that a side that dies ends the contest with an EOFError
    answers: dict[str, list[Answer]] = {side: [] for side in makers}
    for step in range(repeats + 1):
        for side, end in ends.items():
            end.send("go")
            answer = end.recv()
            if step:
                answers[side].append(answer)
    for end in ends.values():
        end.send("done")
    for process in processes:
        process.join()
    return answers


def _serve(connection: Connection, maker: Maker, threads: int) -> None:
    torch.set_num_threads(threads)
    phases = Phases()
    with tempfile.TemporaryDirectory() as output_dir:
        trainer = maker(output_dir, phases)
        trainer.add_callback(StepClock(connection, phases))
        trainer.train()
