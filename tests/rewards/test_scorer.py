# SPDX-License-Identifier: Apache-2.0
"""Any mixture of reward functions becomes one matrix, and every wrong answer is named with its function and sample."""

import asyncio
import copy
import functools
import math
import sys
import threading
import time

import numpy as np
import pytest
import torch
from naming import raises_naming

from minimind_hf.environment import Terminated
from minimind_hf.rewards import RewardError, RewardModel, RewardScorer, length_reward

PROMPTS = ["p0", "p0", "p1", "p1"]
COMPLETIONS = ["a", "bb", "ccc", "dddd"]
IDS = [[1], [2, 2], [3] * 3, [4] * 4]
COLUMNS = {"answer": ["w", "x", "y", "z"]}


def score(functions, weights=None, columns=COLUMNS, **extra) -> torch.Tensor:
    return RewardScorer(functions, weights)(PROMPTS, COMPLETIONS, IDS, columns, **extra)


def characters(prompts, completions, completion_ids, **columns):
    return [len(completion) for completion in completions]


def returning(value):
    def fixed(completions, **columns):
        return value

    return fixed


class Scaled:
    def __init__(self, factor, name=None):
        self.factor = factor
        if name:
            self.name = name

    def __call__(self, completions, **columns):
        return [self.factor * len(completion) for completion in completions]


class AsyncScaled(Scaled):
    async def __call__(self, completions, **columns):
        await asyncio.sleep(0)
        return [self.factor * len(completion) for completion in completions]


async def async_characters(prompts, completions, completion_ids, **columns):
    await asyncio.sleep(0)
    return [float(len(completion)) for completion in completions]


# --- what may be passed ----------------------------------------------------------------------------------------------


def test_every_form_of_function_in_one_matrix(tmp_path, monkeypatch):
    (tmp_path / "own_rewards_of_this_test.py").write_text(
        "class Half:\n    def __call__(self, completions, **_):\n        return [len(c) / 2 for c in completions]\n"
        "half = Half()\n\ndef third(completions, **_):\n    return [len(c) / 3 for c in completions]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    scorer = RewardScorer(
        [
            characters,
            functools.partial(length_reward, min_chars=2),
            Scaled(2),
            AsyncScaled(3),
            async_characters,
            lambda completions, **_: [0.25] * len(completions),
            "length",
            "own_rewards_of_this_test:third",
            f"{tmp_path / 'own_rewards_of_this_test.py'}:half",
        ]
    )
    assert scorer.names == [
        "characters", "length_reward", "Scaled", "AsyncScaled", "async_characters", "lambda", "length_reward_2",
        "third", "Half",
    ]  # fmt: skip
    signals = scorer(PROMPTS, COMPLETIONS, IDS, COLUMNS)
    assert signals.dtype == torch.float32 and signals.shape == (4, 9)
    # Completion i has i + 1 characters; "length" gives all of them -0.5.
    expected = [[n, 0.5 if n >= 2 else -0.5, 2 * n, 3 * n, n, 0.25, -0.5, n / 3, n / 2] for n in (1, 2, 3, 4)]
    torch.testing.assert_close(signals, torch.tensor(expected))


def test_built_in_names_and_a_single_function():
    scorer = RewardScorer(["length", "thinking", "format", "repetition", "repetition_cjk", "length_reward"])
    assert scorer.names == [
        "length_reward", "thinking_reward", "format_reward", "repetition_reward", "repetition_reward_cjk",
        "length_reward_2",
    ]  # fmt: skip
    completion = "</think>" + "上中下" * 8
    # 24 characters after an empty thought: length +0.5, thinking -0.5, format +0.25; \w+ sees one token, characters
    # show 22 three-grams of 3 kinds: 19 / 22, capped at 0.5.
    signals = scorer(["p"], [completion], [[1]], {})
    assert signals.tolist() == [[0.5, -0.5, 0.25, 0.0, -0.5, 0.5]]
    assert RewardScorer("length").names == RewardScorer(length_reward).names == ["length_reward"]


def test_names_are_unique_and_own_names_are_used():
    def accuracy_2(completions):
        return [0.0] * len(completions)

    functions = [accuracy_2, Scaled(1, "accuracy"), Scaled(2, "accuracy"), Scaled(3, "accuracy")]
    assert RewardScorer(functions).names == ["accuracy_2", "accuracy", "accuracy_3", "accuracy_4"]


def test_reward_models_as_object_instance_and_path(make_classifier, tokenizer, tmp_path):
    model = make_classifier()
    model.save_pretrained(tmp_path / "judge")
    tokenizer.save_pretrained(tmp_path / "judge")
    path = str(tmp_path / "judge")
    scorer = RewardScorer(
        [RewardModel(model, tokenizer, name="own"), model, path],
        processing_classes=[None, tokenizer, None],
        model_kwargs={"batch_size": 3, "dtype": torch.float32},
    )
    assert scorer.names == ["own", "LlamaForSequenceClassification", "judge"]
    assert scorer.functions[2].batch_size == 3
    signals = scorer.to("cpu")(PROMPTS, COMPLETIONS, IDS, COLUMNS)
    torch.testing.assert_close(signals[:, 0], signals[:, 1])
    torch.testing.assert_close(signals[:, 0], signals[:, 2])
    loaded = type(model).from_pretrained(path)  # knows its path, so that the tokenizer is found
    torch.testing.assert_close(score([loaded])[:, 0], signals[:, 0])


def test_weights():
    assert RewardScorer([characters, "length"]).weights.tolist() == [1.0, 1.0]
    weights = RewardScorer([characters, "length"], [2, 0.5]).weights
    assert weights.tolist() == [2.0, 0.5] and weights.dtype == torch.float32


# --- arguments -------------------------------------------------------------------------------------------------------


def test_a_function_gets_what_it_names():
    seen = {}

    def narrow(completions, answer):
        seen["narrow"] = (completions, answer)
        return [0.0] * 4

    def wide(prompts, **rest):
        seen["wide"] = (prompts, rest)
        return [0.0] * 4

    state = object()
    score([narrow, wide], trainer_state=state)
    assert seen["narrow"] == (COMPLETIONS, COLUMNS["answer"])
    rest = {"completions": COMPLETIONS, "completion_ids": IDS, "answer": COLUMNS["answer"], "trainer_state": state}
    assert seen["wide"] == (PROMPTS, rest)


def test_conversational_completions_arrive_as_messages():
    prompts = [[{"role": "user", "content": "q"}]]
    completions = [[{"role": "assistant", "content": "four</think>x"}]]
    signals = RewardScorer([lambda prompts, completions, **_: [len(prompts[0] + completions[0])], "format"])(
        prompts, completions, [[1]], {}
    )
    assert signals.tolist() == [[2.0, 0.25]]


def test_a_needed_column_that_is_not_there():
    def needs_level(completions, level):
        return level

    with raises_naming(RewardError, "'needs_level'", "'level'", "'answer'", "'completion_ids'"):
        score([needs_level])


def test_columns_that_bear_reserved_names():
    with raises_naming(RewardError, "'completions'", "dataset.rename_column('completions', 'reference')"):
        score([characters], columns={"completions": COMPLETIONS})
    with raises_naming(RewardError, "'trainer_state'", "rename_column"):
        score([characters], columns={"trainer_state": [1] * 4}, trainer_state=None)
    with raises_naming(RewardError, "'answer'", 1, 4):
        score([characters], columns={"answer": ["x"]})


def test_functions_get_copies():
    seen = []

    def spoiler(prompts, completions, completion_ids, answer):
        for prompt, completion, ids, schema in zip(prompts, completions, completion_ids, answer, strict=True):
            prompt.append("more")
            completion[0]["content"] = "spoiled"
            ids.pop()
            schema["a"][0] = "spoiled"
        prompts.clear()
        return [0.0] * 2

    def reader(prompts, completions, completion_ids, answer):
        seen.append((prompts, completions, completion_ids, answer))
        return [1.0] * 2

    prompt, schema = [{"role": "user", "content": "p"}], {"a": ["x"]}
    given = (
        [prompt, prompt],
        [[{"role": "assistant", "content": c}] for c in "ab"],
        [[1, 2], [3, 4]],
        {"answer": [schema] * 2},
    )
    before = copy.deepcopy(given)
    RewardScorer([spoiler, reader])(*given)
    assert given == before and seen == [(*before[:3], before[3]["answer"])]


def test_columns_are_checked_before_there_is_anything_to_score():
    def own(completions, level, bonus=0):
        return level

    cases = {"math": ["'answer'", "'solution'"], "exact_match": ["'answer'"], "regex": ["'pattern'"]}
    cases |= {"json_schema": ["'schema'"], "reasoning_gym": ["'task_index'"]}
    cases |= {own: ["'own'", "'level'"], functools.partial(own, bonus=1): ["'own'", "'level'"]}
    for function, missing in cases.items():
        with raises_naming(RewardError, *missing, "['label']", "rename_column"):
            RewardScorer([characters, function]).check_columns(["label"])
    fitting = ["math", "regex=a", functools.partial(own, level=[1]), "length", lambda log_metric, **_: [], len]
    RewardScorer(fitting[:-1]).check_columns(["solution"], ["log_metric"])
    with raises_naming(RewardError, "'log_metric'", "rename_column"):
        RewardScorer("length").check_columns(["log_metric"], ["log_metric"])


# --- what may be returned --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        [1, 0, True, 2.5],
        (1, 0, True, 2.5),
        torch.tensor([1.0, 0.0, 1.0, 2.5], requires_grad=True),
        np.array([1.0, 0.0, 1.0, 2.5]),
        [torch.tensor(1.0), torch.tensor([0]), np.True_, np.float32(2.5)],
        torch.tensor([1.0, 0.0, 1.0, 2.5], dtype=torch.bfloat16),
    ],
)
def test_numbers_of_every_kind(value):
    assert score([returning(value)])[:, 0].tolist() == [1.0, 0.0, 1.0, 2.5]


def test_none_becomes_nan():
    signals = score([returning([None, 1.0, None, 2.0]), characters])
    assert signals.isnan().tolist() == [[True, False], [False, False], [True, False], [False, False]]
    assert signals[1, 0] == 1.0 and signals[3, 0] == 2.0


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ([1.0, 2.0], [2, 4]),
        ([], [0, 4]),
        (np.zeros(5), [5, 4]),
        (None, [None, "NoneType", "list", 4]),
        (1.0, [1.0, "float", "list", 4]),
        (torch.tensor(1.0), ["tensor(1.)", "Tensor", "list", 4]),
        ("good", ["'good'", "str", "list", 4]),
        ({"a": 1}, ["dict", "list", 4]),
        ([0.0, 0.0, math.nan, 0.0], ["nan", "sample 2", "'p1'", "'ccc'", None]),
        ([0.0, -math.inf, 0.0, 0.0], ["-inf", "sample 1", "'bb'"]),
        ([0.0, 0.0, 0.0, 1e39], ["1e+39", "float32", "sample 3"]),
        ([0.0, 10**400, 0.0, 0.0], ["1" + "0" * 199 + "...", "float32", "sample 1"]),
        ([0.0, "good", 0.0, 0.0], ["'good'", "str", "sample 1"]),
        ([0.0, 1j, 0.0, 0.0], ["1j", "complex", "sample 1"]),
        (torch.zeros(4, 2), ["[0.0, 0.0]", "list", "sample 0"]),
    ],
)
def test_wrong_answers_are_named(value, named):
    with raises_naming(RewardError, "'fixed'", *named) as caught:
        score([characters, returning(value)])
    assert isinstance(caught.value, ValueError)


def test_an_exception_is_kept_and_named_with_the_rows():
    def picky(completions, answer):
        return [{"w": 1, "x": 2, "z": 3}[key] for key in answer]

    with raises_naming(RewardError, "KeyError: 'y'") as caught:
        score([picky])
    assert isinstance(caught.value.__cause__, KeyError)
    for number, (prompt, completion) in enumerate(zip(PROMPTS, COMPLETIONS, strict=True)):
        assert f"sample {number}:\n  prompt: {prompt!r}\n  completion: {completion!r}" in str(caught.value)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("size", [1, 2, 64])
def test_a_function_that_raised_is_never_called_again(size, is_async):
    calls, others = [], []

    def judge(completions, **_):
        calls.append(len(completions))
        raise ConnectionError("out of credit")

    async def async_judge(completions, **_):
        await asyncio.sleep(0)
        return judge(completions)

    def other(completions, **_):
        others.append(len(completions))
        return [0.0] * len(completions)

    scorer = RewardScorer([other, async_judge if is_async else judge])
    with raises_naming(RewardError, "ConnectionError: out of credit") as caught:
        scorer(["p"] * size, [f"c{i}" for i in range(size)], [[1]] * size, {})
    assert calls == others == [size]
    assert isinstance(caught.value.__cause__, ConnectionError)
    said = str(caught.value)
    assert "'c0'" in said and (f"'c{size - 1}'" in said) == (size <= 4)
    assert size <= 4 or f"{size} completions" in said
    scorer.close()


def test_long_texts_are_shown_in_part():
    def raises(**_):
        raise KeyError

    question, answer = [{"role": "user", "content": "p" * 5000}], [{"role": "assistant", "content": "c" * 5000}]
    for function, rows, longest in [(returning([math.nan]), 1, 800), (raises, 64, 2500)]:
        with pytest.raises(RewardError) as caught:
            RewardScorer([function])([question] * rows, [answer] * rows, [[1]] * rows, {})
        said = str(caught.value)
        assert len(said) < longest and "p" * 100 in said and "c" * 100 in said


# --- async -----------------------------------------------------------------------------------------------------------


def test_async_functions_run_together():
    # Each waits for the other: one after the other they would never end.
    arrived = {}

    def meeting(mine, other):
        async def function(completions, **_):
            arrived.setdefault(mine, asyncio.Event()).set()
            await asyncio.wait_for(arrived.setdefault(other, asyncio.Event()).wait(), timeout=20)
            return [1.0] * len(completions)

        return function

    assert score([meeting("a", "b"), meeting("b", "a")]).tolist() == [[1.0, 1.0]] * 4


@pytest.mark.timeout(60)
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("in_a_task", [False, True])
def test_what_ends_the_loop_of_async_functions_ends_the_call(error, in_a_task):
    async def ends():
        raise error("end")

    async def function(completions, **_):
        await (asyncio.gather(ends()) if in_a_task else ends())

    async def works(completions, **_):
        return [1.0] * len(completions)

    scorer = RewardScorer([works, function])
    with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else RewardError):
        scorer(PROMPTS, COMPLETIONS, IDS, {})
    scorer.close()


def test_async_functions_run_while_others_do():
    started = threading.Event()

    async def starts(completions, **_):
        started.set()
        return [1.0] * len(completions)

    def waits(completions, **_):
        return [float(started.wait(timeout=20))] * len(completions)

    assert score([starts, waits]).tolist() == [[1.0, 1.0]] * 4


def test_the_loop_stays_from_call_to_call():
    loops = []

    async def remembers(completions, **_):
        loops.append(asyncio.get_running_loop())
        return [0.0] * len(completions)

    scorer = RewardScorer([remembers])
    for _ in range(2):
        scorer(PROMPTS, COMPLETIONS, IDS, {})
    assert loops[0] is loops[1]
    scorer.close()
    assert loops[0].is_closed()
    scorer(PROMPTS, COMPLETIONS, IDS, {})
    assert loops[2] is not loops[0]


def test_inside_a_running_loop():
    async def notebook():
        return score([async_characters, characters])

    assert asyncio.run(notebook()).tolist() == [[n, n] for n in (1.0, 2.0, 3.0, 4.0)]


def test_async_exception_is_named_with_its_samples():
    async def picky(completions, **_):
        await asyncio.sleep(0)
        return [1 / (len(completion) - 3) for completion in completions]

    with raises_naming(RewardError, "'picky'", "ZeroDivisionError", "sample 2", "'ccc'") as caught:
        score([picky])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_failure_does_not_wait_for_the_others():
    async def endless(completions, **_):
        await asyncio.sleep(60)

    def fails(completions, **_):
        raise RuntimeError("at once")

    start = time.monotonic()
    with raises_naming(RewardError, "'fails'", "RuntimeError: at once"):
        score([endless, fails])
    assert time.monotonic() - start < 20


# --- what cannot be used ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("functions", "named"),
    [
        ([], ["reward_funcs=['length']"]),
        ([3], [3]),
        ([Scaled], ["Scaled", "instance"]),
        (["no_such_module_here:f"], ["'no_such_module_here:f'", "ModuleNotFoundError"]),
        (["math:no_such"], ["'math:no_such'", "'no_such'"]),
        (["math:pi"], ["'math:pi'", "float"]),
        (["fractions:Fraction"], ["'fractions:Fraction'", "ABCMeta"]),
        (["nowhere/own.py:f"], ["'nowhere/own.py:f'", "file", "'nowhere/own.py'"]),
    ],
)
def test_what_is_no_reward_function(functions, named):
    with raises_naming(RewardError, *named):
        RewardScorer(functions)


NAMES = "length, thinking, format, repetition, repetition_cjk, math, exact_match, regex, json_schema, reasoning_gym"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("lenght", "length"),
        ("Thinking", "thinking"),
        ("exactmatch", "exact_match"),
        ("reasoning-gym", "reasoning_gym"),
        ("regx=[0-9]+/2", "regex"),
        ("lenght_reward", "length_reward"),
    ],
)
def test_a_misspelt_name_is_corrected_without_the_hub(written, meant, monkeypatch):
    monkeypatch.setattr(RewardModel, "from_pretrained", lambda *args, **kwargs: pytest.fail("the hub was asked"))
    with raises_naming(RewardError, repr(written), NAMES, repr(meant)):
        RewardScorer([written])


@pytest.mark.parametrize("name", ["gpt2", "someone/lenght"])
def test_a_name_like_no_other_may_be_a_reward_model(name, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with raises_naming(RewardError, repr(name), NAMES, "'module:name'", "HF_HUB_OFFLINE"):
        RewardScorer([name])


def test_a_file_that_fails(tmp_path):
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with raises_naming(RewardError, tmp_path / "broken.py", "ZeroDivisionError", "division by zero"):
        RewardScorer([f"{tmp_path / 'broken.py'}:f"])


def test_two_files_of_one_name(tmp_path):
    for folder, value in (("a", 1.0), ("b", 2.0)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own.py").write_text(f"def f(completions):\n    return [{value}] * len(completions)\n")
    scorer = RewardScorer([f"{tmp_path}/a/own.py:f", f"{tmp_path}/b/own.py:f"])
    assert scorer.names == ["f", "f_2"]
    assert scorer(["p"], ["c"], [[1]], {}).tolist() == [[1.0, 2.0]]


def test_weights_that_are_all_zero_are_refused():
    with raises_naming(RewardError, "weights", "[0.0, 0.0]"):
        RewardScorer([characters, "length"], [0.0, 0.0])
    assert RewardScorer([characters, "length"], [0.0, 1.0]).weights.tolist() == [0.0, 1.0]


def test_weights_that_do_not_fit():
    with raises_naming(RewardError, "reward_weights", 3, 2):
        RewardScorer([characters, "length"], [1.0, 2.0, 3.0])
    for weight in (math.nan, 1e39, 10**400, "1"):
        with raises_naming(RewardError, "reward_weights", repr(weight), "float32"):
            RewardScorer([characters], [weight])


def test_a_model_without_a_tokenizer(make_classifier):
    with raises_naming(RewardError, "LlamaForSequenceClassification", "tokenizer", "OSError"):
        RewardScorer([make_classifier()])


def test_a_function_without_signature_is_called_with_everything():
    class Opaque:
        @property
        def __signature__(self):
            raise ValueError("none")

        def __call__(self, prompts, completions, completion_ids, answer):
            return [0.5] * len(answer)

    assert score([Opaque()]).tolist() == [[0.5]] * 4


@pytest.mark.parametrize("code", [0, None, "enough"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_reward_that_exits_is_an_error_that_names_it(code, is_async):
    def leaving(completions, **kwargs):
        sys.exit(code)

    async def leaving_later(completions, **kwargs):
        sys.exit(code)

    scorer = RewardScorer(leaving_later if is_async else leaving)
    with raises_naming(
        RewardError, "'leaving_later'" if is_async else "'leaving'", "SystemExit", "" if code is None else code
    ):
        scorer(["p"], ["c"], [[1]], {})
    scorer.close()


def test_sigterm_within_a_reward_is_not_the_rewards_own_exit():
    def ended(completions, **kwargs):
        raise Terminated(143)

    with pytest.raises(Terminated):
        RewardScorer(ended)(["p"], ["c"], [[1]], {})


def test_a_reward_model_given_by_name_uses_the_tokenizer_that_was_passed(make_classifier, tokenizer, tmp_path):
    make_classifier().save_pretrained(tmp_path)
    with pytest.raises(RewardError):  # the folder has none
        RewardScorer(str(tmp_path))
    scorer = RewardScorer([str(tmp_path), "length"], processing_classes=[tokenizer, None])
    tokenizer.save_pretrained(tmp_path)
    other = copy.deepcopy(tokenizer)
    other.chat_template = "{% for m in messages %}{{ m.content }}!{% endfor %}"
    prompts, said = [[{"role": "user", "content": "a"}]], [[{"role": "assistant", "content": "b"}]]
    given, own, others = (
        RewardScorer(str(tmp_path), processing_classes=one)(prompts, said, [[1]], {})[0, 0]
        for one in (tokenizer, None, other)
    )
    assert given == own == scorer(prompts, said, [[1]], {})[0, 0]
    assert others != own
