# SPDX-License-Identifier: Apache-2.0
"""Evaluation: the statistics by hand, and the command on small models."""

import io
import json
import math

import pytest
import torch
from naming import assert_names, raises_naming
from rich.console import Console
from tiny import make_policy, make_tokenizer

from minimind_hf.cli import main
from minimind_hf.evaluation import (
    Answers,
    EvalSettings,
    ExactMatch,
    as_table,
    changes_table,
    estimate,
    summary,
    thinking_ratio_of,
)
from minimind_hf.evaluation.answers import _by_prompt
from minimind_hf.evaluation.tables import changed_answers, said, shortened
from minimind_hf.rewards.builtin import built_in_reward


def test_estimate_by_hand():
    # mean 2, sample std of (1, 2, 3) is 1, so the half width is 1.959964 / sqrt(3)
    result = estimate([1.0, 2.0, 3.0, math.nan])
    assert result.mean == 2.0 and result.prompts == 3
    assert result.high - result.mean == pytest.approx(1.959964 / math.sqrt(3), abs=1e-6)
    assert result.mean - result.low == pytest.approx(result.high - result.mean)


def test_estimate_of_one_value_and_of_none():
    assert estimate([0.5]).high == math.inf
    assert estimate([math.nan]) is None


def test_interval_covers_the_truth_as_often_as_it_says():
    """2,000 samples of 200 fair coins: coverage within 3 standard errors (1.5 points) of 95 %; fixed by the seed."""
    draws = torch.randint(0, 2, (2000, 200), generator=torch.Generator().manual_seed(0)).double()
    covered = sum(result.low <= 0.5 <= result.high for result in map(estimate, draws.tolist()))
    assert covered / 2000 == pytest.approx(0.95, abs=0.015)


def test_difference_is_taken_prompt_by_prompt():
    first, second = Answers("a", {"reward": [0.0, 10.0, 20.0]}, []), Answers("b", {"reward": [1.0, 11.0, 21.0]}, [])
    (row,) = summary([first, second])
    assert row["models"]["a"]["high"] > row["models"]["b"]["low"]  # the intervals overlap
    assert row["differences"] == {"b": {"mean": 1.0, "low": 1.0, "high": 1.0, "prompts": 3, "clear": True}}
    assert as_table([first, second], "t").row_count == 2


@pytest.mark.parametrize(
    ("values", "is_clear"),
    [([1.0, 2.0, 3.0], True), ([-1.0, -2.0, -3.0], True), ([-1.0, 2.0], False), ([0.0, 0.0], False), ([1.0], False)],
)
def test_a_difference_is_clear_where_its_interval_leaves_out_0(values, is_clear):
    change = estimate(values)
    assert change.is_clear == (change.low > 0 or change.high < 0) == is_clear
    models = [Answers("a", {"reward": [0.0] * len(values)}, []), Answers("b", {"reward": values}, [])]
    console = Console(file=io.StringIO(), width=120)
    console.print(as_table(models, "t"))
    assert (" * " in console.file.getvalue().split("mean ±")[0]) == is_clear


def answered(name: str, *rewards: float | None, samples: int = 1) -> Answers:
    rows = [
        {"index": n // samples, "prompt": f"q{n // samples}", "completion": f"{name}{n}", "reward": reward}
        for n, reward in enumerate(rewards)
    ]
    return Answers(name, {}, rows)


def test_answers_that_changed_most_are_shown():
    before, after = answered("a", 0.0, 1.0, 0.5, None, 1.0, 0.0), answered("b", 1.0, 0.0, 0.5, 1.0, 0.5, 0.25)
    console = Console(file=io.StringIO(), width=100)
    console.print(changes_table(before, after, most=1))
    shown = console.file.getvalue()
    assert "2 prompts better, 2 worse" in " ".join(shown.split())
    assert all(each in shown for each in ("q0", "a0", "b0", "0 → 1", "q1", "a1", "b1", "1 → 0"))
    assert not any(each in shown for each in ("q2", "q3", "q4", "q5"))
    assert changes_table(before, after, most=9).row_count == 4
    assert changes_table(before, before, most=3) is None and changes_table(before, after, most=0) is None


def test_of_several_samples_the_one_that_changed_most_is_shown():
    before = answered("a", 0.0, 0.0, 1.0, 1.0, samples=2)
    after = answered("b", 0.5, 1.0, 1.0, 0.5, samples=2)
    assert [pair[1]["completion"] for pair in changed_answers(before, after)] == ["b1", "b3"]


def test_texts_of_the_table_are_short_and_of_an_episode_the_last():
    assert (
        shortened("a\n b") == "a b"
        and len(shortened("x" * 999)) < 260
        and shortened("x" * 999 + "end").endswith("end")
    )
    assert said([{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]) == "two"
    assert said([]) == said([{"role": "assistant", "content": None}]) == ""


def test_table_of_four_models_can_be_read_at_80_columns():
    names = ["supervised", "grpo-0.1", "grpo-0.01", "ppo"]
    signals = {"rewards/exact_match": [0.0, 1.0], "rewards/repetition_cjk_reward": [1.0, 3.0]}
    console = Console(file=io.StringIO(), width=80)
    console.print(as_table([Answers(name, signals, []) for name in names], "t"))
    shown = console.file.getvalue()
    assert all(text in shown for text in (*names, *signals, "2.000 ± 1.960", "+0.000 ± 0.000"))
    assert max(map(len, shown.splitlines())) <= 80


def test_exact_match_is_the_reward_of_that_name():
    score = ExactMatch("solution")
    texts = ("7</think> 42\n", "42 it is", "42", "so it is\n#### 42", "New  York", "42")
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    solutions = [42, "42", "42", "42", "New York", None]
    assert score(completions=completions, solution=solutions) == [1.0, 0.0, 1.0, 1.0, 1.0, None]
    assert built_in_reward("exact_match")(completions, solutions) == score(completions=completions, solution=solutions)
    with raises_naming(ValueError, "exact_match", "'solution'", "['answer']"):
        score(completions=completions, answer=["1", "2", "3"])


@pytest.mark.parametrize(
    ("name", "value"), [("samples", 0), ("temperature", -0.1), ("batch_size", 0), ("thinking_ratio", 1.5)]
)
def test_settings_out_of_range(name, value):
    with raises_naming(ValueError, name, value):
        EvalSettings(**{name: value})


@pytest.fixture
def folders(tmp_path):
    for seed in (0, 1):
        make_policy(seed).save_pretrained(tmp_path / f"model_{seed}")
        make_tokenizer().save_pretrained(tmp_path / f"model_{seed}")
    rows = [{"prompt": [{"role": "user", "content": f"{n}?"}], "answer": str(n)} for n in range(5)]
    (tmp_path / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def run(folders, capsys, *flags: str) -> dict:
    models = [str(folders / f"model_{seed}") for seed in (0, 1)]
    data = ["--dataset_name", str(folders / "held_out.jsonl"), "--device", "cpu", "--max_completion_length", "6"]
    assert main(["eval", *models, *data, *flags]) == 0
    printed = capsys.readouterr().out
    assert "model_1" in printed and "differences from model_0" in " ".join(printed.split())
    return json.loads(printed.splitlines()[-1])


def test_command_compares_two_models(folders, capsys):
    flags = ["--reward_funcs", "length", "--exact_match", "--samples", "3", "--batch_size", "2"]
    result = run(folders, capsys, *flags, "--output", str(folders / "out"))
    assert [row["signal"] for row in result["results"]] == [
        "reward", "rewards/length_reward", "rewards/exact_match", "tokens", "truncated",
    ]  # fmt: skip
    reward = result["results"][0]
    assert set(reward["models"]) == {"model_0", "model_1"} and set(reward["differences"]) == {"model_1"}
    assert reward["models"]["model_0"]["prompts"] == 5
    assert json.loads((folders / "out" / "results.json").read_text()) == result
    rows = [json.loads(line) for line in (folders / "out" / "completions_model_0.jsonl").read_text().splitlines()]
    assert len(rows) == 15 and rows[0]["index"] == rows[2]["index"] == 0 and rows[3]["index"] == 1
    mean_tokens = sum(row["tokens"] for row in rows) / 15
    assert result["results"][3]["models"]["model_0"]["mean"] == pytest.approx(mean_tokens, abs=1e-6)


def test_thinks_as_the_models_were_trained(folders, capsys):
    assert run(folders, capsys, "--reward_funcs", "length")["settings"]["thinking_ratio"] == 0.9
    runs = [folders / f"model_{seed}" / "run.json" for seed in (0, 1)]
    runs[1].write_text(json.dumps({"settings": {"thinking_ratio": 0.25}}))
    assert run(folders, capsys, "--reward_funcs", "length")["settings"]["thinking_ratio"] == 0.25
    (folders / "model_1" / "checkpoint-1").mkdir()
    assert thinking_ratio_of(["hub/name", str(folders / "model_1" / "checkpoint-1")]) == 0.25
    runs[0].write_text(json.dumps({"settings": {"thinking_ratio": 0.0}}))
    assert run(folders, capsys, "--reward_funcs", "length", "--thinking_ratio", "1")["settings"]["thinking_ratio"] == 1
    with raises_naming(ValueError, runs[0].parent, runs[1].parent, 0.25, "--thinking_ratio"):
        thinking_ratio_of([str(run.parent) for run in runs])


def test_same_seed_same_result(folders, capsys):
    assert run(folders, capsys, "--reward_funcs", "length") == run(folders, capsys, "--reward_funcs", "length")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ([], ["--reward_funcs", "--exact_match"]),
        (["--reward_funcs", "length", "--samples", "0"], ["samples", 0, 1]),
        (["--reward_funcs", "length", "--reward_weights", "1", "2"], ["reward_weights", 2, 1]),
        (["--exact_match", "nocol"], ["'exact_match'", "'nocol'"]),
        (["--exact_match", "--output", __file__], ["--output", __file__]),
        (["--exact_match", "--device", "cuda:77"], ["device", "'cuda:77'"]),
    ],
)
def test_command_refuses(folders, flags, named, capsys):
    arguments = ["eval", str(folders / "model_0"), "--dataset_name", str(folders / "held_out.jsonl"), *flags]
    assert main(arguments) == 1
    assert_names(capsys.readouterr().err, *named)


def test_command_names_a_file_without_rows(folders, tmp_path, capsys):
    (tmp_path / "header.csv").write_text("prompt,answer\n")
    arguments = ["eval", str(folders / "model_0"), "--dataset_name", str(tmp_path / "header.csv"), "--exact_match"]
    assert main(arguments) == 1
    assert_names(capsys.readouterr().err, tmp_path / "header.csv", "header", "['prompt', 'answer']")


def test_a_later_model_that_fails(folders, capsys):
    arguments = ["--dataset_name", str(folders / "held_out.jsonl"), "--device", "cpu", "--max_completion_length", "3"]
    first, second = str(folders / "model_0"), folders / "model_1"
    assert main(["eval", first, str(folders / "none"), "--exact_match", *arguments]) == 1
    printed = capsys.readouterr()
    assert_names(printed.err, folders / "none", "exist")
    assert not printed.out  # before the first was evaluated
    (second / "tokenizer.json").unlink()
    assert main(["eval", first, str(second), "--exact_match", *arguments]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out.splitlines()[-1])["results"][0]["models"].keys() == {"model_0"}
    (second / "model.safetensors").write_bytes(b"xx")
    assert main(["eval", first, str(second), "--exact_match", *arguments]) == 1
    assert_names(capsys.readouterr().err, second / "model.safetensors")


def test_rows_without_their_weighted_reward_are_left_out():
    class Scorer:
        names = ["right", "length"]
        weights = torch.tensor([1.0, 0.0])

    nan = math.nan
    signals = torch.tensor([[1.0, 5.0], [nan, 5.0], [0.5, nan], [nan, nan]])
    said = [{"tokens": 1, "finish_reason": "stop"} for _ in range(4)]
    reward = _by_prompt(signals, Scorer, said, EvalSettings(samples=1))["reward"]
    assert reward[0] == 1.0 and reward[2] == 0.5  # a signal of weight 0 leaves nothing out
    assert math.isnan(reward[1]) and math.isnan(reward[3])
    assert estimate(reward).mean == 0.75
