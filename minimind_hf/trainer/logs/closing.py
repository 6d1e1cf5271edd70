# SPDX-License-Identifier: Apache-2.0
"""The last lines of a run: where its report, model and completions are, and what to do next."""

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from transformers.trainer_utils import get_last_checkpoint

from ...language import Text, said
from ...reports.page import REPORT_FILE
from ...reports.record import COMPLETIONS_FOLDER, SAMPLES_FOLDER


def closing_lines(
    folder: str | Path,
    model: str | Path | None = None,
    question: str | None = None,
    command: Sequence[str] | None = None,
) -> list[str]:
    """Says what a run has left in its folder, in the language that is spoken.

    Args:
        folder (`str` or `Path`): The output_dir of the run.
        model (`str` or `Path`, *optional*): Where the trained model was saved. Unset: in the last checkpoint, if any.
        question (`str`, *optional*): What to ask the model.
        command (`Sequence[str]`, *optional*): What comes next: arguments of `minimind-hf`. Unset: talk to the model.
    """
    folder = Path(folder)
    model = model or get_last_checkpoint(str(folder))
    unsaved = Text("not saved yet; trainer.save_model() writes it to {folder}", folder=folder)
    asking = ["--thinking", "--prompt", question] if question else []
    command = command or ["chat", str(model or folder), *asking]
    return [
        said("report: {path}", path=folder / REPORT_FILE),
        said("model: {path}", path=model or unsaved),
        *_completions(folder),
        said("next: {command}", command=f"{command_line_tool()} {shlex.join(command)}"),
    ]


def _completions(folder: Path) -> list[str]:
    """Where they are; a run that learns from given texts has none."""
    completions, samples = folder / COMPLETIONS_FOLDER, folder / SAMPLES_FOLDER
    if not completions.is_dir() and not samples.is_dir():
        return []
    few = Text("{folder}, a few of the first and of the last step (all: log_completions)", folder=samples)
    return [said("completions: {path}", path=completions if completions.is_dir() else few)]


def command_line_tool() -> str:
    """The command as it works here: the environment may not be active, the package may not be installed."""
    beside = Path(sys.executable).with_name("minimind-hf")
    if shutil.which("minimind-hf"):
        return "minimind-hf"
    return shlex.join([os.path.relpath(beside)] if beside.exists() else [sys.executable, "-m", "minimind_hf"])
