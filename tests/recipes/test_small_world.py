# SPDX-License-Identifier: Apache-2.0
"""The data of the journey: right, kept apart, and the same every time."""

import json
import random
import re

from journey import small_world
from journey.small_world import questions, right_answer, split


def test_every_answer_is_right_and_every_wrong_one_wrong():
    for item in questions():
        texts = [[{"role": "assistant", "content": text}] for text in (item.courteous(), item.courteous(right=False))]
        assert right_answer(texts, [item.answer] * 2) == [1.0, 0.0], item
        assert right_answer([f"{item.thought}\n</think>\n\n{item.answer}"], [item.answer]) == [1.0]


def test_sums_and_comparisons_are_right():
    for item in questions():
        numbers = [int(number) for number in re.findall(r"\d+", item.texts[0])]
        if numbers:
            is_sum = "larger" not in item.texts[0] and "大" not in item.texts[0]
            assert int(item.answer) == (sum(numbers) if is_sum else max(numbers))


def test_thought_works_the_sum_out():
    (item,) = [item for item in questions() if item.texts[0] == "What is 27 plus 35?"]
    assert item.thought == "Ones: 7+5=12. Tens: 2+3+1=6." and item.answer == "62"


def test_held_out_numbers_are_in_no_other_question():
    train, held_out = split(questions(), seed=0)
    asked = [{tuple(sorted(re.findall(r"\d+", item.texts[0]))) for item in part} for part in (train, held_out)]
    assert not asked[0] & asked[1] and len(held_out) > 200
    assert {item.language for item in held_out} == {"en", "zh"}


def test_files_are_a_function_of_the_seed(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        random.seed(name)  # the global state has no say
        small_world.write(tmp_path / name, seed)
    files = {name: {p.name: p.read_text() for p in (tmp_path / name).iterdir()} for name in "abc"}
    assert files["a"] == files["b"] != files["c"]
    rows = [json.loads(line) for line in files["a"]["sft.jsonl"].splitlines()]
    turns = [message for row in rows for message in row["conversations"]]
    assert any("tools" in turn for turn in turns) and any("tool_calls" in turn for turn in turns)
    assert any("reasoning_content" in turn for turn in turns)
