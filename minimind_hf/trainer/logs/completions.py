# SPDX-License-Identifier: Apache-2.0
"""Completions for people to read: a table, jsonl files, and debug output."""

import json
from collections.abc import Iterator
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import gather_object
from rich.console import Console
from rich.rule import Rule
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from trl.trainer.utils import print_prompt_completions_sample

from ...reports.episodes import chosen
from ...reports.record import EARLY, LATE, NUM_SAMPLES, write_lines
from ..experience.experience import Experience
from .episodes import episode_columns, written_and_read


class CompletionLog:
    """Collects completions between two logs; `flush` shows and writes them.

    Args:
        folder (`Path`): Folder for `completions_STEP.jsonl`, with one object per completion.
        signal_names (`list[str]`): Names of the reward functions, in the order of `Experience.signals`.
        rows_to_print (`int`, *optional*): Rows of the table. Default: all.
        unique_prompts (`bool`): Print only one row per prompt in the table.
        interval (`int`): Steps between two tables on the terminal.
    """

    def __init__(
        self, folder: Path, signal_names: list[str], rows_to_print: int | None, unique_prompts: bool, interval: int
    ):
        self.folder = folder
        self.signal_names = signal_names
        self.rows_to_print = rows_to_print
        self.unique_prompts = unique_prompts
        self.interval = interval
        self._next_table = 0
        self._rows: list[dict] = []

    def add(self, experience: Experience) -> None:
        self._rows += [
            completion_row(experience, index, self.signal_names) for index in range(len(experience.rollouts))
        ]

    def flush(self, accelerator: Accelerator, step: int) -> list[dict]:
        """Writes in the main process, and returns the rows of the table for trackers; every process calls it."""
        rows = gather_object(self._rows)
        self._rows = []
        if not rows or not accelerator.is_main_process:
            return []
        write_lines(self.folder / f"completions_{step:06d}.jsonl", [{"step": step, **row} for row in rows])
        if self.unique_prompts:
            rows = list({json.dumps(row["prompt"], ensure_ascii=False): row for row in reversed(rows)}.values())[::-1]
        if step >= self._next_table:
            self._next_table = step - step % self.interval + self.interval
            self._print(rows, step)
        return rows

    def _print(self, rows: list[dict], step: int) -> None:
        rewards = {name: [_number(row["signals"][name]) for row in rows] for name in self.signal_names}
        print_prompt_completions_sample(
            [row["prompt"] for row in rows],
            [row["completion"] for row in rows],
            rewards,
            [_number(row.get("advantage")) for row in rows],
            step,
            self.rows_to_print,
        )


class SampleLog:
    """Keeps a few completions of the first and the last rollout of a run, for its report.

    Args:
        folder (`Path`): Folder for `early.jsonl` and `late.jsonl`, written by the main process.
        signal_names (`list[str]`): Names of the reward functions.
        tokenizer: Decodes the tokens of episodes.
    """

    def __init__(self, folder: Path, signal_names: list[str], tokenizer: PreTrainedTokenizerBase):
        self.folder = folder
        self.signal_names = signal_names
        self._tokenizer = tokenizer
        self._latest: list[dict] = []

    def add(self, experience: Experience, step: int) -> None:
        """Selects one completion of each prompt, then a second one of each, and so on, and writes them.

        Of episodes, those that failed come first, see [`chosen`].

        Every rollout is written as the latest: a run that is killed, and resumed within its last rollout, makes none.
        """
        width = experience.num_generations
        order = sorted(range(len(experience.rollouts)), key=lambda index: (index % width, index // width))
        if experience.episodes is None:
            self._latest = [
                {"step": step, **completion_row(experience, i, self.signal_names)} for i in order[:NUM_SAMPLES]
            ]
        else:
            self._latest = self._episodes(experience, [i for i in order if i < experience.num_counted], step)
        if step == 1:
            write_lines(self.folder / EARLY, self._latest)
        write_lines(self.folder / LATE, self._latest)

    def _episodes(self, experience: Experience, order: list[int], step: int) -> list[dict]:
        rows = [{"step": step, **completion_row(experience, i, self.signal_names)} for i in order]
        return [
            {**rows[place], "pieces": written_and_read(experience.rollouts[order[place]], self._tokenizer)}
            for place in chosen(rows, NUM_SAMPLES)
        ]

    def end(self) -> None:
        """Writes the selected completions of the last rollout."""
        if self._latest:
            write_lines(self.folder / LATE, self._latest)


def completion_row(experience: Experience, index: int, signal_names: list[str]) -> dict:
    """A completion with its rewards as a row of a jsonl file; its advantage only if the rollout has advantages."""
    rollout = experience.rollouts[index]
    return {
        "prompt": experience.prompt_of(index)["prompt"],
        "completion": experience.completions[index],
        "signals": dict(zip(signal_names, _readable(experience.signals[index]), strict=True)),
        "reward": _readable(experience.rewards[index]),
        **({} if experience.advantages is None else {"advantage": _readable(experience.advantages[index])}),
        "tokens": sum(end - start for start, end in rollout.turns),
        "finish_reason": rollout.finish_reason,
        **episode_columns(experience, index),
        **{name: values[index] for name, values in experience.notes.items()},
    }


def print_debug(
    experience: Experience, signal_names: list[str], tokenizer: PreTrainedTokenizerBase, step: int
) -> None:
    """Prints each prompt as the policy sees it, with special tokens, and all its completions with their rewards.

    An episode is printed turn by turn, with what was answered in between. Prompts of a group are printed anew where an
    environment, or a rollout_func, has made different ones of them.
    """
    console = Console(soft_wrap=True, highlight=False, markup=False)
    shown = None
    for index, rollout in enumerate(experience.rollouts):
        number, generation = divmod(index, experience.num_generations)
        prompt = (number, experience.prompt_of(index)["prompt_ids"])
        if prompt != shown:
            console.print(Rule(f"step {step}, prompt {number}"))
            console.print(tokenizer.decode(prompt[1]))
            shown = prompt
        length = f"{len(rollout.completion_ids)} tokens, {rollout.finish_reason}"
        console.print(Rule(f"completion {generation}: {length}", align="left"))
        for title, ids in _passages(experience, index):
            if title:
                console.print(Rule(title, align="left", characters="-"))
            console.print(tokenizer.decode(ids))
        signals = zip(signal_names, _readable(experience.signals[index]), strict=True)
        parts = ", ".join(f"{name} {value}" for name, value in signals)
        console.print(f"reward {_readable(experience.rewards[index])} ({parts})")


def _passages(experience: Experience, index: int) -> Iterator[tuple[str, list[int]]]:
    """The turns of a completion and what stands between them, each with a title; one without is untitled."""
    ids, turns = experience.rollouts[index].completion_ids, experience.rollouts[index].turns
    if turns == [(0, len(ids))]:
        yield "", ids
        return
    rewards = None if experience.turn_rewards is None else experience.turn_rewards[index]
    end_before = 0
    for turn, (start, end) in enumerate(turns):
        if start > end_before:
            yield f"answer: {start - end_before} tokens, not trained on", ids[end_before:start]
        reward = "" if rewards is None else f", reward {rewards[turn]:.6g}"
        yield f"turn {turn + 1}: {end - start} tokens{reward}", ids[start:end]
        end_before = end
    if end_before < len(ids):
        yield f"answer: {len(ids) - end_before} tokens, not trained on", ids[end_before:]


def _readable(values: Tensor) -> list | float | None:
    """Returns rounded numbers, with None for NaN, which JSON does not support."""
    if values.dim():
        return [_readable(value) for value in values]
    return None if values.isnan() else round(values.item(), 6)


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
