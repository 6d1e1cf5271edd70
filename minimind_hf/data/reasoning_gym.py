# SPDX-License-Identifier: Apache-2.0
"""Prompts out of reasoning-gym's tasks."""

import datasets

from ..tasks import TaskError, make_task, parse_task, system_prompt
from .conversations import PromptError


def load_task(source: str, split: str) -> datasets.Dataset:
    """Makes the prompts of a task, see `minimind_hf.tasks`.

    Args:
        source (`str`): `"reasoning_gym:NAME,KEY=VALUE,..."`.
        split (`str`): `"train"` or `"test"`, of as many problems each (in the test split without those that occur in
            the other); slices such as `"test[:50]"` too.

    Returns:
        `datasets.Dataset`: `prompt` (messages), `answer`, and for the scorer `task`, `task_held_out`, `task_index`.

    Raises:
        PromptError: If there is no such task, option or split, or nothing is held out.
    """
    name = split.partition("[")[0]
    if name not in ("train", "test"):
        raise PromptError(f"A task of reasoning-gym has the splits 'train' and 'test', but {split!r} was asked for.")
    try:
        rows = _rows(source, held_out=name == "test")
    except TaskError as error:
        raise PromptError(str(error)) from error
    if not rows:
        raise PromptError(
            f"{source!r} has no problem to hold out: all of its test split occur in the train split too. Lower size "
            "or raise difficulty, so that there are more problems than that."
        )
    return _sliced(datasets.Dataset.from_list(rows), name, split)


def _rows(source: str, held_out: bool) -> list[dict]:
    spec = parse_task(source)
    task = make_task(spec, held_out)
    known = {make_task(spec)[index]["question"] for index in range(spec.size)} if held_out else set()
    system = system_prompt(spec)
    first = [{"role": "system", "content": system}] if system else []
    rows = []
    for index in range(spec.size):
        problem = task[index]
        if problem["question"] not in known:
            prompt = [*first, {"role": "user", "content": problem["question"]}]
            place = {"task": source, "task_held_out": held_out, "task_index": index}
            rows.append({"prompt": prompt, "answer": str(problem["answer"]), **place})
    return rows


def _sliced(dataset: datasets.Dataset, name: str, split: str) -> datasets.Dataset:
    parts = datasets.ReadInstruction.from_spec(split).to_absolute({name: len(dataset)})
    rows = [row for part in parts for row in range(part.from_ or 0, len(dataset) if part.to is None else part.to)]
    return dataset.select(rows)
