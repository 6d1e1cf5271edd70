# SPDX-License-Identifier: Apache-2.0
"""Prompts from reasoning-gym's tasks."""

import datasets

from ..tasks import TaskError, make_task, parse_task, system_prompt
from .conversations import PromptError
from .files import take_split


def load_task(source: str, split: str) -> datasets.Dataset:
    """Makes the prompts of a task, see `minimind_hf.tasks`.

    Args:
        source (`str`): `"reasoning_gym:NAME,KEY=VALUE,..."`.
        split (`str`): `"train"` or `"test"`, or a slice such as `"test[:50]"`. Both have the same number of problems,
            less those in the test split that the train split has too.

    Returns:
        `datasets.Dataset`: `prompt` (messages), `answer`, and for the scorer `task`, `task_held_out`, `task_index`.

    Raises:
        PromptError: If there is no such task, option or split, or no problem is held out.
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
            f"{source!r} has no problem to hold out: the train split contains all problems of the test split. Lower "
            "size, or raise the difficulty so that there are more different problems."
        )
    return take_split(datasets.Dataset.from_list(rows), split, name)


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
