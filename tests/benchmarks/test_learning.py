# SPDX-License-Identifier: Apache-2.0
"""The tasks of the learning curves: their data, their rewards by hand, and the start that runs share."""

import json
import random
import sys
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import learning  # noqa: E402
import reverse_text  # noqa: E402
import shared_start  # noqa: E402
import text_tasks  # noqa: E402


def test_similarity_and_exactness_by_hand():
    completions = [
        "<reversed_text>taob</reversed_text>",
        "<reversed_text>tab</reversed_text>",  # 2 * 3 equal letters of 4 + 3
        "<reversed_text>taob",
        "taob",
        "so <reversed_text>taob</reversed_text>",
    ]
    answers = ["taob"] * len(completions)
    assert reverse_text.similarity(completions, answer=answers) == pytest.approx([1, 6 / 7, 0, 0, 0])
    assert reverse_text.exact(completions, answer=answers) == [1, 0, 0, 0, 0]


def test_texts_to_reverse():
    task = reverse_text.make_task()
    prompts = [row["prompt"] for row in (*task.held_out, *task.train)] + [prompt for prompt, _ in task.worked]
    assert len(set(prompts)) == len(prompts)
    row = task.held_out[0]
    assert row["prompt"] == f"Reverse: {row['answer'][::-1]}\n"
    assert fmean(text.startswith(reverse_text.OPEN) for _, text in task.worked) == pytest.approx(
        reverse_text.REVERSES, abs=0.01
    )
    tokenizer = text_tasks.make_tokenizer(task.phrases)
    shown = [f"{reverse_text.OPEN}{row['answer']}{reverse_text.CLOSE}" for row in task.train]
    assert max(map(len, tokenizer(shown)["input_ids"])) < task.settings["max_completion_length"]


def test_what_is_worked_earns_what_it_shows():
    text = "oak snow bell"
    shown = {reverse_text.worked(text, random.Random(seed)) for seed in range(50)}
    assert sorted(reverse_text.exact(list(shown), answer=[text[::-1]] * 2)) == [0, 1]


def test_characters_and_phrases_are_tokens():
    tokenizer = text_tasks.make_tokenizer(["<answer>"])
    text = "oak,\n 42!<answer>"
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len("oak,\n 42!") + 1
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]) == [0, 1, 2]


def test_problems_of_reasoning_gym():
    pytest.importorskip("reasoning_gym")
    import gym_mixture

    rows = gym_mixture.mixed("test[:4]")
    assert len({row["task"] for row in rows}) == len(gym_mixture.TASKS)
    assert not {row["prompt"] for row in rows} & {row["prompt"] for row in gym_mixture.mixed("train[:200]")}
    columns = {name: [row[name] for row in rows] for name in ("task", "task_held_out", "task_index")}
    right = [row["answer"] for row in rows]
    assert gym_mixture.score(right, **columns) == gym_mixture.solved(right, **columns) == [1.0] * len(rows)
    assert not any(gym_mixture.solved(["none"] * len(rows), **columns))


def test_a_start_is_made_once(tmp_path):
    made = []

    def make_start(task: str, folder: Path, seed: int) -> dict[str, float]:
        made.append((task, seed))
        folder.mkdir()
        (folder / "model").write_text("weights")
        return {"accuracy": 0.5}

    keeping = shared_start.kept(make_start, tmp_path / "start")
    for run in ("cispo", "grpo"):
        assert keeping("sums", tmp_path / run, 1) == {"accuracy": 0.5}
        assert (tmp_path / run / "model").read_text() == "weights"
    assert made == [("sums", 1)]


def test_commands_of_runs(tmp_path):
    recipe = learning.command("guess", "rloo", 2, tmp_path / "run")
    assert recipe[2:4] == [learning.SHARED_START, str(tmp_path / "start_seed_2")]
    assert recipe[4:9] == [str(learning.RECIPES / "agent.py"), "--task", "guess", "--algorithm", "grpo"]
    assert recipe[-4:] == ["--loss_type", "grpo", "--advantage_estimator", "rloo"]
    *run, settings = learning.command("sums", "trl", 1, tmp_path / "run")
    assert run[2:] == [learning.RUN, "sums", "trl", str(tmp_path / "start_seed_1")]
    assert json.loads(settings)["max_steps"] == 66
    assert learning.command("sums", "ppo", 1, tmp_path)[-2:] == ["--max_steps", "240"]


def test_curves_meet_where_all_of_them_are():
    at, values = learning.over_seeds([([0.0, 2.0, 4.0], [0.0, 2.0, 4.0]), ([1.0, 3.0], [10.0, 12.0])])
    assert at[0] == 1 and at[-1] == 3
    np.testing.assert_allclose(values, [at, at + 9])
