# SPDX-License-Identifier: Apache-2.0
"""Progress: a bar on a terminal, plain lines elsewhere, with the numbers that matter."""

import io
import re

import pytest
from rich.console import Console
from transformers import TrainerState
from transformers.trainer_callback import TrainerControl

from minimind_hf.trainer.logs import progress
from minimind_hf.trainer.logs.progress import RLProgressCallback

LOGS = {"loss": 0.1, "reward": 1.5, "kl_ref": 0.02, "tokens_per_second": 321.0, "grad_norm": 9.0}


def drive(console: Console, steps: int = 4, start: int = 0, main_process: bool = True, logging_steps: int = 1) -> str:
    state = TrainerState(
        max_steps=steps, global_step=start, is_world_process_zero=main_process, logging_steps=logging_steps
    )
    callback, control = RLProgressCallback(console), TrainerControl()
    callback.on_train_begin(None, state, control)
    while state.global_step < steps:
        state.global_step += 1
        callback.on_step_end(None, state, control)
        if state.global_step % logging_steps == 0:
            callback.on_log(None, state, control, logs=LOGS)
    callback.on_prediction_step(None, state, control, eval_dataloader=[1, 2])
    callback.on_evaluate(None, state, control)
    callback.on_log(None, state, control, logs={"eval_reward": 2.0, "eval_runtime": 1.0})
    callback.on_train_end(None, state, control)
    return console.file.getvalue()


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves three seconds each time it is read."""
    times = iter(range(0, 10_000, 3))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(times)))


def test_plain_lines_have_the_numbers_and_the_time_left(clock):
    lines = drive(Console(file=io.StringIO(), width=60)).splitlines()
    # Read at 0 s (begin), 3 s (step 1: shown), 6 s (3 s later: not), 9 s (6 s later: shown), 12 s (the last: shown)
    assert lines[0] == "step 1/4: reward 1.5, kl_ref 0.02, loss 0.1, tok/s 321, 0:00:09 left"
    assert [line.split(":")[0] for line in lines] == ["step 1/4", "step 3/4", "step 4/4", "step 4, evaluation"]
    assert lines[2].endswith("0:00:00 left") and lines[3] == "step 4, evaluation: reward 2"


def test_each_log_that_was_asked_for_is_shown(clock):
    lines = drive(Console(file=io.StringIO(), width=60), steps=8, logging_steps=2).splitlines()
    assert [line.split("/")[0] for line in lines[:-1]] == ["step 2", "step 4", "step 6", "step 8"]


def test_evaluations_have_the_name_of_their_data_and_are_not_wrapped(clock):
    console = Console(file=io.StringIO(), width=40)
    state, control = TrainerState(max_steps=9, global_step=7, is_world_process_zero=True), TrainerControl()
    callback = RLProgressCallback(console)
    callback.on_train_begin(None, state, control)
    measured = {"reward": 0.125, "kl_ref": 0.02, "completions/mean_length": 17.5, "loss": 0.1, "runtime": 3.0}
    for name in ("easy_sums", "hard"):
        callback.on_log(None, state, control, logs={f"eval_{name}_{key}": value for key, value in measured.items()})
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "step 7, evaluation of easy_sums: reward 0.125, kl_ref 0.02, length 17.5, loss 0.1"
    assert lines[1].startswith("step 7, evaluation of hard: ")
    callback.on_train_end(None, state, control)


def test_a_reward_that_is_not_of_every_step_stays(monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    console = Console(file=io.StringIO(), width=40)
    state = TrainerState(max_steps=2, is_world_process_zero=True, logging_steps=1)
    control = TrainerControl()
    callback = RLProgressCallback(console)
    callback.on_train_begin(None, state, control)
    for step, logs in enumerate(({"loss": 0.1, "reward": 1.5}, {"loss": 0.2}), start=1):
        state.global_step = step
        callback.on_log(None, state, control, logs=logs)
    assert "step 2/2: reward 1.5, loss 0.2" in console.file.getvalue()
    callback.on_train_end(None, state, control)


def test_time_left_of_a_resumed_run_counts_its_own_steps(clock):
    lines = drive(Console(file=io.StringIO(), width=60), steps=10, start=8).splitlines()
    assert lines[0].startswith("step 9/10") and lines[0].endswith("0:00:03 left")


def test_bar_on_a_terminal():
    shown = drive(Console(file=io.StringIO(), width=160, force_terminal=True))
    assert "training" in shown and "4/4" in shown and "reward 1.5, kl_ref 0.02" in shown
    assert "step 4/4" not in shown


@pytest.mark.parametrize(
    ("width", "kept", "left_out"),
    [
        (80, ["reward 1.5", "kl_ref 0.02", "loss 0.1"], ["tok/s"]),
        (60, ["reward 1.5"], ["loss", "tok/s"]),
        (160, ["reward 1.5", "kl_ref 0.02", "loss 0.1", "tok/s 321"], []),
    ],
)
def test_steps_time_left_and_reward_stay_where_it_is_narrow(width, kept, left_out):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    shown = drive(console, steps=2000, start=1995)
    shown = re.sub(r"\x1b\[\w+", "", shown.split("\r")[-1])  # what moves the cursor
    (line,) = [line for line in shown.splitlines() if "2000/2000" in line]
    assert len(line.rstrip()) <= width and "\N{HORIZONTAL ELLIPSIS}" not in line
    assert all(each in line for each in (*kept, "0:00:00")) and not any(each in line for each in left_out)


def test_numbers_of_another_trainer():
    console = Console(file=io.StringIO(), width=80)
    state, control = TrainerState(max_steps=1, global_step=1, is_world_process_zero=True), TrainerControl()
    callback = RLProgressCallback(console, shown={"loss": "loss", "accuracy": "right"})
    callback.on_train_begin(None, state, control)
    callback.on_log(None, state, control, logs={"loss": 0.25, "accuracy": 0.5, "reward": 1.0})
    callback.on_train_end(None, state, control)
    assert "step 1/1: loss 0.25, right 0.5, 0:00:00 left" in console.file.getvalue()


def test_other_processes_are_silent():
    assert drive(Console(file=io.StringIO()), main_process=False) == ""
