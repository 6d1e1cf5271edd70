# SPDX-License-Identifier: Apache-2.0
"""The reward of reasoning-gym's tasks: each problem's own scorer."""

from typing import Any

from ..tasks import TaskError, extract_answer, parse_task, score_answer
from .columns import needs_columns
from .errors import RewardError
from .rules import Completion, answer_part, completion_text


@needs_columns("task")
@needs_columns("task_held_out")
@needs_columns("task_index")
def reasoning_gym_reward(
    completions: list[Completion],
    task: list[str] | None = None,
    task_held_out: list[bool] | None = None,
    task_index: list[int] | None = None,
    **columns: Any,
) -> list[float | None]:
    """The score that each problem's scorer gives the answer: the text after `</think>`, or inside `<answer>` there.

    Most scorers give 1.0 for the answer alone and less if there is other text around it. The columns are those of
    `load_prompts("reasoning_gym:NAME")`.

    Raises:
        RewardError: If the data set does not come from reasoning-gym.
    """
    if task is None or task_held_out is None or task_index is None:
        raise RewardError(
            "The reward 'reasoning_gym' scores the problems of a data set 'reasoning_gym:NAME', but this data set has "
            "no column 'task'. Use such a data set, or another reward."
        )
    answers = [extract_answer(answer_part(completion_text(completion))) for completion in completions]
    try:
        return [
            score_answer(parse_task(name), held_out, index, answer)
            for name, held_out, index, answer in zip(task, task_held_out, task_index, answers, strict=True)
        ]
    except TaskError as error:
        raise RewardError(str(error)) from error
