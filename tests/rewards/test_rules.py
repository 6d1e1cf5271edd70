# SPDX-License-Identifier: Apache-2.0
"""The rules give the values of the design, at their borders too."""

import functools
import json

import pytest

from minimind_hf.rewards import rules

# The numbers of the reference file, copied: response -> (length, thinking, format, repetition, answer).
THOUGHT = (
    "<think>\nI need to think about this carefully.\n</think>\n\nThe answer is four, because two plus two is four."
)
RULES = [
    ("ok", -0.5, 0.0, 0.0, 0.0, "ok"),
    (THOUGHT, 0.5, 1.0, 0.25, 0.0, "The answer is four, because two plus two is four."),
    ("<think>a</think>b", -0.5, -0.5, 0.25, 0.0, "b"),
    ("<think>" + "x" * 400 + "</think>\n\nA full answer of reasonable length here.", 0.5, -0.5, 0.25, 0.0,
     "A full answer of reasonable length here."),
    ("no tags at all but a perfectly reasonable answer of medium length", 0.5, 0.0, 0.0, 0.0,
     "no tags at all but a perfectly reasonable answer of medium length"),
    # Tokens of the answer: x < / think > and eight y; 11 three-grams, (y, y, y) six times among them: 5 of 11 repeat.
    ("<think>one two three four five six seven</think>x</think>y y y y y y y y", 0.5, 1.0, -0.25, -5 / 11,
     "x</think>y y y y y y y y"),
    ("   ", -0.5, 0.0, 0.0, 0.0, "   "),
    ("</think>", -0.5, -0.5, 0.25, 0.0, ""),
]  # fmt: skip

REPETITION = [
    ("", 0.0),
    ("short", 0.0),
    # 21 tokens (six words and a stop, thrice), 19 three-grams, 7 different: 12 / 19 is more than one half.
    ("the cat sat on the mat. the cat sat on the mat. the cat sat on the mat.", 0.5),
    # 10 tokens, 8 three-grams, the second sentence repeats 3 of them: 3 / 8.
    ("机器学习 是 一种 方法 。 机器学习 是 一种 方法 。", 0.375),
    ("a b c d e f g h i j k l m", 0.0),
    ("好" * 100, 0.0),
    # 8 tokens (你好 ， 世界 ！ 你好 ， 世界 ！), 6 three-grams, 2 of them repeat.
    ("你好，世界！你好，世界！", 1 / 3),
    ("yes " * 40, 0.5),
]


@pytest.mark.parametrize(("response", "length", "thinking", "form", "repetition", "answer"), RULES)
def test_rules(response, length, thinking, form, repetition, answer):
    assert rules.length_score(response) == length
    assert rules.thinking_score(response) == thinking
    assert rules.format_score(response) == form
    assert rules.repetition_score(response) == pytest.approx(repetition, abs=1e-12)
    assert rules.answer_part(response) == answer


@pytest.mark.parametrize(("text", "penalty"), REPETITION)
def test_repetition_penalty(text, penalty):
    assert rules.repetition_penalty(text) == pytest.approx(penalty, abs=1e-12)


def test_golden_values(golden_dir):
    golden = json.loads((golden_dir / "rewards.json").read_text(encoding="utf-8"))
    for case in golden["repetition"]:
        assert rules.repetition_penalty(case["text"]) == pytest.approx(case["repetition_penalty"], abs=1e-12)
    for case in golden["rules"]:
        response = case["response"]
        scores = {
            "length": rules.length_score(response),
            "thinking": rules.thinking_score(response),
            "format": rules.format_score(response),
            "repetition": rules.repetition_score(response),
        }
        assert {name: pytest.approx(score, abs=1e-12) for name, score in scores.items()} == {
            n: case[n] for n in scores
        }
        assert sum(scores.values()) == pytest.approx(case["total"], abs=1e-12)
        assert rules.answer_part(response) == case["answer"]


@pytest.mark.parametrize(("count", "score"), [(19, -0.5), (20, 0.5), (800, 0.5), (801, -0.5)])
def test_length_borders(count, score):
    assert rules.length_score("  " + "字" * count + "\n") == score


@pytest.mark.parametrize(("count", "score"), [(19, -0.5), (20, 1.0), (300, 1.0), (301, -0.5)])
def test_thinking_borders_where_the_prompt_opened_the_thought(count, score):
    assert rules.thinking_score("\n" + "x" * count + "\n</think>\n\nanswer") == score


def test_split_cjk_sees_what_the_plain_rule_does_not():
    # 15 characters with period 5: 13 three-grams, 5 different, so 8 of 13 repeat: more than one half.
    assert rules.repetition_penalty("今天天气好" * 3) == 0.0
    assert rules.repetition_penalty("今天天气好" * 3, split_cjk=True) == 0.5
    # 6 characters, 4 three-grams, one repeats (abcabc has abc, bca, cab, abc): 1 / 4.
    assert rules.repetition_penalty("上中下上中下", split_cjk=True) == 0.25


def test_split_cjk_leaves_other_scripts_whole():
    text = "the cat sat. the cat sat. été_1 été_1"
    assert rules.repetition_penalty(text, split_cjk=True) == rules.repetition_penalty(text)
    # GPU and 4 stay one token each between characters: 用 GPU 训 练 4 天, and the same again. 12 tokens,
    # 10 three-grams, 6 different, 4 repeat.
    assert rules.repetition_penalty("用GPU训练4天用GPU训练4天", split_cjk=True) == pytest.approx(0.4)
    assert rules.repetition_penalty("カタカナひらがな", split_cjk=True) == 0.0


def test_ngram_and_cap_are_options():
    # Bigrams of "a b a b": ab, ba, ab: one of three repeats; 2 * 0.3 * 1 / 3 = 0.2.
    assert rules.repetition_penalty("a b a b", ngram=2, max_penalty=0.3) == pytest.approx(0.2)
    assert rules.repetition_penalty("A a A a", ngram=2) == 0.5


def test_reward_functions_take_both_kinds_of_completions():
    texts = [case[0] for case in RULES]
    messages = [[{"role": "assistant", "content": text}] for text in texts]
    for name, place in (("length", 1), ("thinking", 2), ("format", 3), ("repetition", 4)):
        function = rules.REWARD_FUNCTIONS[name]
        expected = pytest.approx([case[place] for case in RULES], abs=1e-12)
        assert function(prompts=texts, completions=texts, completion_ids=[[1]] * 8, answer=["x"] * 8) == expected
        assert function(prompts=texts, completions=messages, completion_ids=None) == expected


def test_repetition_looks_at_the_answer_only():
    response = "yes yes yes yes yes yes</think>one two three four"
    assert rules.repetition_reward([""], [response]) == [0.0]
    assert str(rules.repetition_score("short")) == "0.0"


def test_options_through_partial():
    long_answers = functools.partial(rules.length_reward, min_chars=1, max_chars=2)
    assert long_answers(prompts=["", ""], completions=["ab", "abc"]) == [0.5, -0.5]
    by_character = functools.partial(rules.repetition_reward, split_cjk=True)
    completions = ["好" * 9, "上中下上中下"]
    assert by_character(["", ""], completions) == rules.repetition_reward_cjk(["", ""], completions) == [-0.5, -0.25]
