# SPDX-License-Identifier: Apache-2.0
"""Completions for people to read: a table, jsonl files, and debug output."""

import json
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import gather_object
from rich.console import Console
from rich.rule import Rule
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from trl.trainer.utils import print_prompt_completions_sample

from ...reports.record import EARLY, LATE, NUM_SAMPLES, write_lines
from ..experience.experience import Experience


class CompletionLog:
    """Collects completions between two logs; `flush` shows and writes them.

    Args:
        folder (`Path`): Folder for `completions_STEP.jsonl`, with one object per completion.
        signal_names (`list[str]`): Names of the reward functions, in the order of `Experience.signals`.
        rows_to_print (`int`, *optional*): Rows of the table. Default: all.
        unique_prompts (`bool`): Print only one row per prompt in the table.
    """

    def __init__(self, folder: Path, signal_names: list[str], rows_to_print: int | None, unique_prompts: bool):
        self.folder = folder
        self.signal_names = signal_names
        self.rows_to_print = rows_to_print
        self.unique_prompts = unique_prompts
        self._rows: list[dict] = []

    def add(self, experience: Experience) -> None:
        self._rows += [_row(experience, index, self.signal_names) for index in range(len(experience.rollouts))]

    def flush(self, accelerator: Accelerator, step: int) -> list[dict]:
        """Writes in the main process, and returns the rows of the table for trackers; every process calls it."""
        rows = gather_object(self._rows)
        self._rows = []
        if not rows or not accelerator.is_main_process:
            return []
        write_lines(self.folder / f"completions_{step:06d}.jsonl", [{"step": step, **row} for row in rows])
        if self.unique_prompts:
            rows = list({json.dumps(row["prompt"], ensure_ascii=False): row for row in reversed(rows)}.values())[::-1]
        self._print(rows, step)
        return rows

    def _print(self, rows: list[dict], step: int) -> None:
        rewards = {name: [_number(row["signals"][name]) for row in rows] for name in self.signal_names}
        print_prompt_completions_sample(
            [row["prompt"] for row in rows],
            [row["completion"] for row in rows],
            rewards,
            [_number(row["advantage"]) for row in rows],
            step,
            self.rows_to_print,
        )


class SampleLog:
    """Keeps a few completions of the first and the last rollout of a run, for its report.

    Args:
        folder (`Path`): Folder for `early.jsonl` and `late.jsonl`, written by the main process.
        signal_names (`list[str]`): Names of the reward functions.
    """

    def __init__(self, folder: Path, signal_names: list[str]):
        self.folder = folder
        self.signal_names = signal_names
        self._latest: list[dict] = []

    def add(self, experience: Experience, step: int) -> None:
        """Selects one completion of each prompt, then a second one of each, and so on; writes them at step 1."""
        width = experience.num_generations
        order = sorted(range(len(experience.rollouts)), key=lambda index: (index % width, index // width))
        self._latest = [{"step": step, **_row(experience, i, self.signal_names)} for i in order[:NUM_SAMPLES]]
        if step == 1:
            write_lines(self.folder / EARLY, self._latest)

    def end(self) -> None:
        """Writes the selected completions of the last rollout."""
        if self._latest:
            write_lines(self.folder / LATE, self._latest)


def _row(experience: Experience, index: int, signal_names: list[str]) -> dict:
    rollout = experience.rollouts[index]
    return {
        "prompt": experience.prompt_of(index)["prompt"],
        "completion": experience.completions[index],
        "signals": dict(zip(signal_names, _readable(experience.signals[index]), strict=True)),
        "reward": _readable(experience.rewards[index]),
        "advantage": _readable(experience.advantages[index]),
        "tokens": len(rollout.completion_ids),
        "finish_reason": rollout.finish_reason,
        **{name: values[index] for name, values in experience.notes.items()},
    }


def print_debug(
    experience: Experience, signal_names: list[str], tokenizer: PreTrainedTokenizerBase, step: int
) -> None:
    """Prints each prompt as the policy sees it, with special tokens, and all its completions with their rewards."""
    console = Console(soft_wrap=True, highlight=False, markup=False)
    for number, prompt in enumerate(experience.prompts):
        console.print(Rule(f"step {step}, prompt {number}"))
        console.print(tokenizer.decode(prompt["prompt_ids"]))
        for generation in range(experience.num_generations):
            index = number * experience.num_generations + generation
            rollout = experience.rollouts[index]
            console.print(
                Rule(
                    f"completion {generation}: {len(rollout.completion_ids)} tokens, {rollout.finish_reason}",
                    align="left",
                )
            )
            console.print(tokenizer.decode(rollout.completion_ids))
            signals = zip(signal_names, _readable(experience.signals[index]), strict=True)
            parts = ", ".join(f"{name} {value}" for name, value in signals)
            console.print(f"reward {_readable(experience.rewards[index])} ({parts})")


def _readable(values: Tensor) -> list | float | None:
    """Returns rounded numbers, with None for NaN, which JSON does not support."""
    if values.dim():
        return [_readable(value) for value in values]
    return None if values.isnan() else round(values.item(), 6)


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
