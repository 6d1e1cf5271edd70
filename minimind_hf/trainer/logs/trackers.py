# SPDX-License-Identifier: Apache-2.0
"""Trackers named in `report_to`: they get the table of completions, and continue their run after a resume.

transformers' callbacks start the trackers and send them every logged number. This module adds the rest through the
trackers' own interfaces; it imports only trackers named in `report_to`. The main process saves the ids of their runs
in OUTPUT_DIR/trackers.json.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.integrations import TensorBoardCallback
from transformers.trainer import TRAINER_STATE_NAME

from ...reports.record import write_json

TRACKERS_FILE = "trackers.json"
TABLE = "completions"


class Tracker:
    """A tracker.

    Args:
        args (`TrainingArguments`): Settings of the run.
        callbacks (`Sequence[TrainerCallback]`): The trainer's callbacks, including the tracker's.
    """

    run_variables: tuple[str, str] | None = None  # environment variables: the run to continue, and whether to continue

    def __init__(self, args: TrainingArguments, callbacks: Sequence[TrainerCallback]):
        self._args, self._callbacks = args, callbacks
        self._set: list[str] = []

    def current_run(self) -> str | None:
        """Returns the id or name of the current run, for [`~Tracker.go_on`]."""
        raise NotImplementedError

    def go_on(self, run: str, step: int) -> None:
        """Makes the tracker continue this run from this optimizer step. Call it before the tracker starts."""
        for name, value in zip(self.run_variables, (run, "allow"), strict=True):
            if name not in os.environ:
                os.environ[name] = value
                self._set.append(name)

    def has_started(self) -> None:
        """Resets the environment, so that a later run in this process does not continue this one."""
        for name in self._set:
            del os.environ[name]
        self._set = []

    def log_table(self, columns: list[str], rows: list[list], step: int) -> None:
        """Sends a table; does nothing if the tracker has no tables."""


class Wandb(Tracker):
    run_variables = ("WANDB_RUN_ID", "WANDB_RESUME")

    def current_run(self) -> str | None:
        import wandb

        return None if wandb.run is None else wandb.run.id

    def log_table(self, columns: list[str], rows: list[list], step: int) -> None:
        import wandb

        if wandb.run is not None:
            wandb.log({TABLE: wandb.Table(columns=columns, data=rows), "train/global_step": step})


class SwanLab(Tracker):
    run_variables = ("SWANLAB_RUN_ID", "SWANLAB_RESUME")

    def current_run(self) -> str | None:
        import swanlab

        run = swanlab.get_run()
        return None if run is None else run.id

    def log_table(self, columns: list[str], rows: list[list], step: int) -> None:
        import swanlab

        if swanlab.get_run() is not None:
            swanlab.log({TABLE: swanlab.echarts.Table().add(columns, rows)}, step=step)


class Trackio(Tracker):
    """Its callback continues a run with the same name."""

    def __init__(self, *args):
        super().__init__(*args)
        self._name = self._args.run_name

    def current_run(self) -> str | None:
        import trackio

        run = trackio.context_vars.current_run.get()
        return None if run is None else run.name

    def go_on(self, run: str, step: int) -> None:
        if self._name in (None, self._args.output_dir):
            self._args.run_name = run

    def has_started(self) -> None:
        self._args.run_name = self._name

    def log_table(self, columns: list[str], rows: list[list], step: int) -> None:
        import trackio

        if self.current_run() is not None:
            trackio.log({TABLE: trackio.Table(columns=columns, data=rows), "train/global_step": step})


class TensorBoard(Tracker):
    """Has no tables."""

    @property
    def _callback(self) -> TensorBoardCallback | None:
        found = (callback for callback in self._callbacks if isinstance(callback, TensorBoardCallback))
        return next(found, None)

    def current_run(self) -> str | None:
        return self._callback and self._callback.logging_dir

    def go_on(self, run: str, step: int) -> None:
        """Continues in the same folder; events of repeated steps are dropped."""
        callback = self._callback
        if callback is None or callback.logging_dir is not None or callback.tb_writer is not None:
            return  # the user has chosen a folder
        callback.logging_dir = run
        callback.tb_writer = _summary_writer()(log_dir=run, purge_step=step + 1)


def _summary_writer() -> type:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        from tensorboardX import SummaryWriter
    return SummaryWriter


KINDS = {"wandb": Wandb, "swanlab": SwanLab, "trackio": Trackio, "tensorboard": TensorBoard}


class Trackers:
    """The trackers of a run. Only the main process reports; calls in other processes do nothing.

    Args:
        args (`TrainingArguments`): `report_to`, `output_dir`, `run_name`.
        callbacks (`Sequence[TrainerCallback]`): The trainer's callbacks.
        is_main_process (`bool`): Whether this process reports.
    """

    def __init__(self, args: TrainingArguments, callbacks: Sequence[TrainerCallback], is_main_process: bool):
        names = args.report_to if is_main_process else []
        self._trackers = {name: KINDS[name](args, callbacks) for name in names if name in KINDS}
        self._path = Path(args.output_dir) / TRACKERS_FILE

    def go_on(self, checkpoint: str | Path) -> None:
        """Makes trackers continue the run of a checkpoint of this output folder. Call it before they start."""
        if not self._trackers or Path(checkpoint).resolve().parent != self._path.parent.resolve():
            return
        if not self._path.exists():
            return
        runs = json.loads(self._path.read_text(encoding="utf-8"))
        step = TrainerState.load_from_json(str(Path(checkpoint) / TRAINER_STATE_NAME)).global_step
        for name, tracker in self._trackers.items():
            if name in runs:
                tracker.go_on(runs[name], step)

    def have_started(self) -> None:
        """Saves the current runs of the trackers."""
        runs = {}
        for name, tracker in self._trackers.items():
            tracker.has_started()
            run = tracker.current_run()
            if run is not None:
                runs[name] = run
        if runs:
            write_json(self._path, runs)

    def log_completions(self, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        """Sends the table of completions to trackers with tables.

        Args:
            rows (`Sequence[Mapping]`): The rows as written to OUTPUT_DIR/completions.
            step (`int`): Step of the log.
        """
        if not rows or not self._trackers:
            return
        flat = [_flat(row, step) for row in rows]
        columns = list(dict.fromkeys(name for row in flat for name in row))
        for tracker in self._trackers.values():
            tracker.log_table(columns, [[row.get(name) for name in columns] for row in flat], step)


def _flat(row: Mapping[str, Any], step: int) -> dict[str, str | float | int | None]:
    cells = {"step": step, **row}
    cells |= cells.pop("signals")
    return {name: _cell(value) for name, value in cells.items()}


def _cell(value: Any) -> str | float | int | None:
    if isinstance(value, list) and all(isinstance(item, dict) and "role" in item for item in value):
        return "\n".join(map(_message, value))
    if value is None or isinstance(value, str | float | int):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _message(message: Mapping[str, Any]) -> str:
    """A message as text: who says it, the thought, what is said, and the calls."""
    said = message.get("content")
    parts = [said if isinstance(said, str | None) else json.dumps(said, ensure_ascii=False, default=str)]
    if thought := message.get("reasoning_content"):
        parts.insert(0, f"<think>{thought}</think>")
    for call in message.get("tool_calls") or ():
        function = call.get("function", call)
        arguments = function.get("arguments")
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
        parts.append(f"{function.get('name')}({text})")
    name = f" {message['name']}" if message.get("name") else ""
    return f"{message['role']}{name}: " + "\n".join(filter(None, parts))
