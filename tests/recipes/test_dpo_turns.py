# SPDX-License-Identifier: Apache-2.0
"""What recipes/dpo.py compares of answers of several turns."""

import pytest
from dpo import TurnsCollator

PAIR = {
    "prompt_ids": [1, 2],
    "chosen_ids": [3, 4, 5, 6],
    "chosen_mask": [1, 0, 0, 1],  # a call, two tokens of the tool's answer, the last turn
    "rejected_ids": [7],
    "rejected_mask": [1],
}
OTHER = {"prompt_ids": [1], "chosen_ids": [2], "chosen_mask": [1], "rejected_ids": [3, 4], "rejected_mask": [0, 1]}


@pytest.mark.parametrize(
    ("limits", "masks"),
    [
        ({}, [[0, 0, 1, 0, 0, 1], [0, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0], [0, 0, 1, 0, 0, 0]]),
        ({"max_length": 5}, [[0, 0, 1, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 0, 0]]),
        (
            {"max_length": 3, "truncation_mode": "keep_end"},
            [[0, 0, 1], [0, 1, 0], [0, 0, 1], [0, 0, 1]],
        ),
    ],
)
def test_answers_of_tools_are_not_compared(limits, masks):
    batch = TurnsCollator(pad_token_id=0, **limits)([PAIR, OTHER])
    assert batch["completion_mask"].tolist() == masks
    assert batch["completion_mask"].shape == batch["input_ids"].shape == batch["attention_mask"].shape
