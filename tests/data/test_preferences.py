# SPDX-License-Identifier: Apache-2.0
"""Preferences as token ids: what the policy would write is compared, and a reward model learns what it will see."""

from pathlib import Path

import pytest
import torch
from naming import raises_naming
from tiny import make_tokenizer

from minimind_hf.data import PromptError
from minimind_hf.data.preferences import encode_preference, parse_preference, preference_ids
from minimind_hf.data.supervised import ConversationRenderer
from minimind_hf.rewards import RewardModel
from minimind_hf.rewards.model import folded_conversation

ROOT = Path(__file__).resolve().parents[2]


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def assistant(text: str, **more) -> dict:
    return {"role": "assistant", "content": text, **more}


def call(city: str) -> dict:
    return assistant("", tool_calls=[{"name": "weather", "arguments": {"city": city}}])


def answered(text: str) -> dict:
    return {"role": "tool", "content": text}


@pytest.fixture
def tokenizer():
    """Bytes as tokens, and the conversation format that the recipes ship."""
    made = make_tokenizer()
    made.chat_template = (ROOT / "recipes" / "journey" / "chat_template.jinja").read_text()
    return made


@pytest.fixture
def renderer(tokenizer) -> ConversationRenderer:
    return ConversationRenderer(tokenizer)


def as_texts(row: dict, renderer: ConversationRenderer) -> dict[str, str]:
    """A preference as texts, in which all of the answers is compared."""
    encoded = encode_preference(row, 0, renderer)
    assert all(set(encoded[f"{name}_mask"]) == {1} for name in ("chosen", "rejected"))
    return {name: renderer.tokenizer.decode(encoded[f"{name}_ids"]) for name in ("prompt", "chosen", "rejected")}


PREFERENCE = {"chosen": [user("1+1?"), assistant("2.")], "rejected": [user("1+1?"), assistant("3")]}


@pytest.mark.parametrize(
    "row",
    [
        PREFERENCE,
        {"prompt": [user("1+1?")], "chosen": [assistant("2.")], "rejected": [assistant("3")]},
    ],
)
def test_preference_as_texts(renderer, row):
    assert as_texts(row, renderer) == {
        "prompt": "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        "chosen": "2.<|im_end|>",
        "rejected": "3<|im_end|>",
    }


def test_preference_between_a_thought_and_none_parts_before_the_thought(renderer):
    row = {"chosen": [user("a"), assistant("A", reasoning_content="hm")], "rejected": [user("a"), assistant("B")]}
    texts = as_texts(row, renderer)
    assert texts["prompt"].endswith("assistant\n<think>\n")
    assert texts["chosen"] == "hm\n</think>\n\nA<|im_end|>" and texts["rejected"] == "\n</think>\n\nB<|im_end|>"


def test_reward_model_learns_what_it_will_be_asked(renderer, tokenizer, tiny_minimind):
    """The ids of the chosen answer are those that RewardModel scores, thoughts left out of both."""
    row = {
        "chosen": [user("1+1?"), assistant("<think>\none and one\n</think>\n\n2.")],
        "rejected": [user("1+1?"), assistant("3", reasoning_content="hm")],
    }
    ids = preference_ids(row, 0, renderer)
    judge = RewardModel.__new__(RewardModel)
    judge.tokenizer, judge.max_length = tokenizer, 512
    for name, answer in (("chosen_ids", "2."), ("rejected_ids", "3")):
        assert ids[name] == judge._encode([user("1+1?")], answer)["input_ids"]


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"chosen": PREFERENCE["chosen"]}, ["rejected", "missing"]),
        ({**PREFERENCE, "prompt": "x"}, ["prompt", "'x'"]),
        (
            {"chosen": [user("a"), assistant("A")], "rejected": [user("b"), assistant("B")]},
            ["chosen", "rejected", "same"],
        ),
        ({"chosen": [user("a"), user("b")], "rejected": [user("a"), assistant("B")]}, ["chosen", "last", "assistant"]),
        ({"chosen": "A", "rejected": "B"}, ["chosen", "'A'"]),
    ],
)
def test_preferences_that_compare_nothing(row, named):
    with raises_naming(PromptError, "row 0", *named):
        parse_preference(row, "row 0")


TURNS = {
    "chosen": [user("sky?"), call("Rome"), answered("blue"), assistant("Blue.")],
    "rejected": [user("sky?"), call("Oslo"), answered("grey"), call("Rome"), answered("blue"), assistant("Grey.")],
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "%s"}}\n</tool_call><|im_end|>'


def test_answers_of_several_turns_are_compared_without_those_of_the_tools(renderer, tokenizer):
    encoded = encode_preference(TURNS, 0, renderer)
    assert tokenizer.decode(encoded["prompt_ids"]).endswith(
        "sky?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    compared = {}
    for name in ("chosen", "rejected"):
        ids, mask = encoded[f"{name}_ids"], encoded[f"{name}_mask"]
        compared[name] = tokenizer.decode([token for token, mine in zip(ids, mask, strict=True) if mine])
    assert compared["chosen"] == CALL % "Rome" + "Blue.<|im_end|>"
    assert compared["rejected"] == CALL % "Oslo" + CALL % "Rome" + "Grey.<|im_end|>"
    assert "<tool_response>\nblue\n</tool_response>" in tokenizer.decode(encoded["chosen_ids"])


def test_turns_before_the_first_difference_are_given(renderer, tokenizer):
    """The same call and the same answer: what is compared is the last message alone."""
    start = [user("sky?"), call("Rome"), answered("blue")]
    row = {"chosen": [*start, assistant("Blue.")], "rejected": [*start, assistant("Grey.")]}
    texts = as_texts(row, renderer)
    assert CALL % "Rome" in texts["prompt"] and texts["prompt"].endswith("</think>\n\n")
    assert (texts["chosen"], texts["rejected"]) == ("Blue.<|im_end|>", "Grey.<|im_end|>")


def test_one_answer_is_the_beginning_of_the_other(renderer):
    row = {"chosen": TURNS["chosen"], "rejected": TURNS["chosen"][:2]}
    _, chosen, rejected, _ = parse_preference(row, "row 0")
    assert chosen[0] == rejected[0] == TURNS["chosen"][1] | {"tool_calls": chosen[0]["tool_calls"]}
    assert len(chosen) == 3 and len(rejected) == 1


def test_answers_must_part_at_a_turn_of_the_assistant():
    row = {"chosen": TURNS["chosen"], "rejected": [*TURNS["chosen"][:2], answered("red"), assistant("Red.")]}
    with raises_naming(PromptError, "row 0", "message 2", "`chosen`", "tool"):
        parse_preference(row, "row 0")


def test_reward_model_sees_the_turns_as_it_learned_them(renderer, tokenizer):
    row = {name: [*turns[:-1], {**turns[-1], "reasoning_content": "hm"}] for name, turns in TURNS.items()}
    ids = preference_ids(row, 0, renderer)
    judge = RewardModel.__new__(RewardModel)
    judge.tokenizer, judge.max_length, judge.answer_only, judge.clamp = tokenizer, 512, True, None
    judge.uses_get_score = False
    scored = []

    def keep(pairs: list) -> torch.Tensor:
        scored.extend(pairs)
        return torch.zeros(len(pairs))

    judge._scores_in_batches = keep
    prompt, chosen, rejected, _ = parse_preference(row, "row 0")
    judge([prompt, prompt], [chosen, rejected])
    assert [judge._encode(*pair)["input_ids"] for pair in scored] == [ids["chosen_ids"], ids["rejected_ids"]]


def test_a_conversation_with_calls_is_folded_with_its_calls():
    folded = folded_conversation([user("sky?")], [call("Rome"), answered("blue"), assistant("Blue.")])
    question, answer = folded
    assert question["content"].startswith(
        'user: sky?\nassistant: {"name": "weather", "arguments": {"city": "Rome"}}\n'
    )
    assert question["content"].endswith("blue") and answer == assistant("Blue.")
