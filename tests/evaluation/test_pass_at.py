# SPDX-License-Identifier: Apache-2.0
"""pass@k: by hand, against all choices of samples, without bias, and in the command's table."""

import json
import math
from itertools import combinations

import pytest
import torch
from naming import assert_names, raises_naming
from tiny import make_policy, make_prompts, make_tokenizer

from minimind_hf.cli import main
from minimind_hf.evaluation import EvalSettings, estimate, pass_at_k
from minimind_hf.evaluation.answers import _by_prompt
from minimind_hf.evaluation.estimates import passes_by_prompt


def test_by_hand():
    # Of the 6 pairs among 4 samples, 3 have the solved one; of the 4 triples, 3 do.
    assert pass_at_k(4, 1, 2) == pytest.approx(3 / 6)
    assert pass_at_k(4, 1, 3) == pytest.approx(3 / 4)
    # 1 - C(6, 4) / C(8, 4) = 1 - 15 / 70
    assert pass_at_k(8, 2, 4) == pytest.approx(55 / 70)
    assert pass_at_k(4, 0, 4) == 0.0 and pass_at_k(4, 1, 4) == 1.0
    assert pass_at_k(5, 2, 1) == pytest.approx(0.4)  # the mean
    assert pass_at_k(10_000, 1, 100) == pytest.approx(0.01)  # no overflow


def test_is_the_share_of_all_choices_with_a_solved_one():
    for n in range(1, 7):
        for c in range(n + 1):
            for k in range(1, n + 1):
                choices = list(combinations([1] * c + [0] * (n - c), k))
                assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, choices)) / len(choices), abs=1e-12)


def test_has_no_bias():
    """The mean over all counts of solved samples, weighted by their probability, is 1 - (1 - p)^k, exactly."""
    for p, n, k in ((0.1, 8, 4), (0.37, 8, 8), (0.6, 5, 2)):
        mean = sum(math.comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1))
        assert mean == pytest.approx(1 - (1 - p) ** k, abs=1e-12)
        if 1 < k < n:  # the plug-in estimator, which is often reported instead, has one
            plugged = sum(math.comb(n, c) * p**c * (1 - p) ** (n - c) * (1 - (1 - c / n) ** k) for c in range(n + 1))
            assert abs(plugged - mean) > 0.01


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 1)])
def test_choices_that_there_are_not(n, c, k):
    with raises_naming(ValueError, f"pass@{k}", n):
        pass_at_k(n, c, k)


def test_rewards_at_the_threshold_are_solved_and_missing_ones_do_not_count():
    nan = math.nan
    rewards = torch.tensor([[0.7, 0.0, 0.0, 0.7], [0.7, nan, nan, 0.0], [nan, nan, nan, 0.7]]).double()
    # 0.7 is not a float32, and a reward of 0.7 must still reach a threshold of 0.7
    assert passes_by_prompt(rewards, 0.7, 2) == pytest.approx([1 - 1 / 6, 1.0, nan], nan_ok=True)
    assert passes_by_prompt(rewards, 0.7, 1) == [0.5, 0.5, 1.0]
    assert passes_by_prompt(rewards, 0.8, 1) == [0.0, 0.0, 0.0]


def test_is_measured_from_the_same_samples_with_an_interval():
    class Scorer:
        names = ["right"]
        weights = torch.tensor([1.0])

    signals = torch.tensor([[1.0], [0.0], [0.0], [0.0], [1.0], [1.0], [0.0], [0.0]])
    said = [{"tokens": 1, "finish_reason": "stop"} for _ in range(8)]
    measured = _by_prompt(signals, Scorer, said, EvalSettings(samples=4, pass_at=[1, 2]))
    assert measured["pass@1"] == [0.25, 0.5] == measured["reward"]
    assert measured["pass@2"] == pytest.approx([0.5, 5 / 6])
    # mean 2/3; std of (1/2, 5/6) is (1/3) / sqrt(2), divided by sqrt(2) prompts: half 1.959964 / 6
    found = estimate(measured["pass@2"])
    assert (found.mean, found.high - found.mean) == pytest.approx((2 / 3, 1.959964 / 6), abs=1e-6)
    assert [row["reward"] for row in said] == [1, 0, 0, 0, 1, 1, 0, 0]


@pytest.mark.parametrize("k", [0, 5])
def test_more_than_the_samples_is_refused(k):
    with raises_naming(ValueError, "pass_at", k, "samples", 4):
        EvalSettings(samples=4, pass_at=[1, k])


def test_command(tmp_path, capsys):
    make_policy().save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in make_prompts(3)))
    arguments = ["eval", str(tmp_path / "model"), "--dataset_name", str(rows), "--reward_funcs", "length"]
    arguments += ["--max_completion_length", "4", "--device", "cpu", "--pass_at", "1", "4", "--solved_at", "-100"]
    assert main([*arguments, "--samples", "4"]) == 0
    printed = capsys.readouterr().out
    result = json.loads(printed.splitlines()[-1])
    rows = {row["signal"]: row["models"]["model"] for row in result["results"]}
    assert rows["pass@1"] == rows["pass@4"] == {"mean": 1.0, "low": 1.0, "high": 1.0, "prompts": 3}
    assert result["settings"]["pass_at"] == [1, 4] and "pass@4" in printed
    assert main([*arguments, "--samples", "3"]) == 1
    assert_names(capsys.readouterr().err, "pass_at", 4, "samples", 3)
