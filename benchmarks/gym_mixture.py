# SPDX-License-Identifier: Apache-2.0
"""The task reasoning-gym: a mixture of four of the package's tasks, with its own scores as the reward.

    pip install reasoning-gym

The supervised start shows right answers and ends when two fifths of the score is reached.
"""

from itertools import chain
from typing import Any

from text_tasks import Rows, TextTask

from minimind_hf import load_prompts
from minimind_hf.rewards.reasoning_gym import reasoning_gym_reward

TASKS = (
    "chain_sum,min_terms=3,max_terms=3,min_digits=1,max_digits=1",
    "letter_counting,min_words=1,max_words=3",
    "spell_backward,min_word_len=3,max_word_len=5",
    "gcd,min_value=1,max_value=60",
)
PHRASES = (  # of their questions
    "State the final answer to the following arithmetic problem: ",
    'How many times does the letter "',
    '" appear in the text: ',
    "Spell this word backward (example: sun -> nus): ",
    "Find the Greatest Common Divisor (GCD) of these numbers: ",
    ". Give only the GCD as your final answer.",
)
SIZE, NUM_HELD_OUT = 2000, 64  # of each task


def score(completions: list[str], **columns: Any) -> list[float]:
    """The package's score."""
    return reasoning_gym_reward(completions, **columns)


def solved(completions: list[str], **columns: Any) -> list[float]:
    """1 for the full score."""
    return [float(each == 1.0) for each in score(completions, **columns)]


def make_task() -> TextTask:
    train, held_out = mixed("train"), mixed(f"test[:{NUM_HELD_OUT}]")
    return TextTask(
        train=train,
        held_out=held_out,
        worked=[(row["prompt"], row["answer"]) for row in train],
        rewards=[score, solved],
        phrases=PHRASES,
        enough=0.4,
        settings={"max_completion_length": 12, "num_generations": 8, "max_steps": 100, "warmup_steps": 5},
    )


def mixed(split: str) -> Rows:
    """Problems of all tasks in turn, as texts."""
    by_task = [load_prompts(f"reasoning_gym:{task},size={SIZE}", split=split) for task in TASKS]
    rows = chain.from_iterable(zip(*by_task, strict=False))
    return [{**row, "prompt": row["prompt"][-1]["content"].strip() + "\n"} for row in rows]
