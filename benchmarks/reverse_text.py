# SPDX-License-Identifier: Apache-2.0
"""The task reverse-text: three words, and the same letter by letter from the end, between tags.

Of the worked examples one in five does it; the others repeat the words, without tags. To learn: to reverse, each time,
and without a slip. The reward is that of the environment of the same name on prime-rl's hub: how similar the text
between the tags is to the reversed one, and 0 without tags.
"""

import random
import re
from difflib import SequenceMatcher
from typing import Any

from text_tasks import TextTask

LIST = """
apple arch bank bell bird boat bone book bridge candle chair cliff cloud coat coin corn door dust field fire
fish flag forest garden glass grain hand hill horse house iron island lamp leaf light map milk moon nest night
oak ocean paper pearl pond rain river road rock roof root rope salt sand seed ship snow star stone storm table
tower tree valley wall water wheel wind window winter wood
"""
WORDS = LIST.split()
ASK, OPEN, CLOSE = "Reverse: ", "<reversed_text>", "</reversed_text>"
NUM_TRAIN, NUM_HELD_OUT, NUM_WORKED = 4096, 256, 20_000
REVERSES = 0.2  # share of the worked examples


def similarity(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    """How much of the text between the tags is as wanted, from 0 to 1."""
    return [
        SequenceMatcher(None, between_tags(text), right).ratio()
        for text, right in zip(completions, answer, strict=True)
    ]


def exact(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    """1 if the text between the tags is right."""
    return [float(between_tags(text) == right) for text, right in zip(completions, answer, strict=True)]


def between_tags(text: str) -> str:
    """What a completion gives as its answer; empty if it gives none."""
    found = re.fullmatch(rf"{OPEN}(.*){CLOSE}", text, re.DOTALL)
    return found[1] if found else ""


def make_task() -> TextTask:
    texts = different_texts(NUM_TRAIN + NUM_HELD_OUT + NUM_WORKED, random.Random(0))
    rows = [{"prompt": prompt_of(text), "answer": text[::-1]} for text in texts]
    held_out, train = rows[:NUM_HELD_OUT], rows[NUM_HELD_OUT : NUM_HELD_OUT + NUM_TRAIN]
    rng = random.Random(1)
    return TextTask(
        train=train,
        held_out=held_out,
        worked=[(prompt_of(text), worked(text, rng)) for text in texts[NUM_HELD_OUT + NUM_TRAIN :]],
        rewards=[similarity, exact],
        phrases=[ASK, OPEN, CLOSE],
        enough=0.16,
        settings={"max_completion_length": 32, "num_generations": 16, "max_steps": 20, "warmup_steps": 2},
    )


def different_texts(count: int, rng: random.Random) -> list[str]:
    """Texts of three words, no two of them equal."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[" ".join(rng.choices(WORDS, k=3))] = None
    return list(found)


def prompt_of(text: str) -> str:
    return f"{ASK}{text}\n"


def worked(text: str, rng: random.Random) -> str:
    return f"{OPEN}{text[::-1]}{CLOSE}" if rng.random() < REVERSES else text
