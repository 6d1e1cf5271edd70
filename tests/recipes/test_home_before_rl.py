# SPDX-License-Identifier: Apache-2.0
"""The recipes before RL end as RL does: a report of the run, and lines that say where it is and what comes next."""

import json
import re
from pathlib import Path

import dpo
import pytest
import reward
import sft
from naming import raises_naming
from tiny import make_llama, make_tokenizer

from minimind_hf.cli import main
from minimind_hf.reports.record import read_run
from minimind_hf.trainer.models.weights import NotFiniteError

PREFERENCE = {
    "chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
    "rejected": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "c"}],
}
FLAGS = ["--use_cpu", "--bf16", "false", "--activation_checkpointing", "false", "--report_to", "none"]
FLAGS += ["--per_device_train_batch_size", "2", "--max_steps", "3", "--logging_steps", "2", "--save_strategy", "no"]
FLAGS += ["--eval_strategy", "steps", "--eval_steps", "2", "--learning_rate", "1e-2"]
LOSS, RATE = ["Training and held-out loss"], ["Gradient norm", "Learning rate", "Time per step"]
OF_PAIRS = ["Pairs in the right order", "Margin"]
RECIPES = {
    "sft": (sft, {"text": "aaaaaa"}, [*LOSS, "Token accuracy", "Entropy of the next token", *RATE]),
    "dpo": (
        dpo,
        PREFERENCE,
        [*LOSS, "Token accuracy", *OF_PAIRS, "Rewards of the pairs", "Log-probabilities of the pairs"]
        + ["Entropy of the next token", *RATE],
    ),
    "reward": (reward, PREFERENCE, [*LOSS, *OF_PAIRS, "Rewards of the batch", *RATE]),
}


@pytest.fixture
def start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_llama().save_pretrained("model")
    make_tokenizer().save_pretrained("model")


def run(name: str, *flags: str) -> Path:
    recipe, row, _ = RECIPES[name]
    Path(f"{name}.jsonl").write_text((json.dumps(row) + "\n") * 8)
    data = ["--dataset_name", f"{name}.jsonl", "--eval_dataset_name", f"{name}.jsonl"]
    recipe.main([*FLAGS, "--model_name_or_path", "model", *data, "--output_dir", f"out_{name}", *flags])
    return Path(f"out_{name}")


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_leaves_its_report_and_says_what_comes_next(start, name, capsys):
    page = (run(name) / "report.html").read_text()
    titles = re.findall(r"<figcaption><b>(.*?)</b>", page)
    assert set(titles) == set(RECIPES[name][2]) and len(titles) == len(RECIPES[name][2])
    assert "Health" not in page and "Completions" not in page and "in updates and evaluations" in page
    assert "<dt>machine</dt>" in page and "<dt>versions</dt>" in page and "<dt>command line</dt>" in page
    given = page.split("other settings")[0].split("Given by the user")[-1]
    assert f"<td>dataset_name</td><td>{name}.jsonl</td>" in given and "<td>max_steps</td><td>3</td>" in given
    assert "seed" not in given and "seed" in page.split("other settings")[-1]
    report, model, then, result = capsys.readouterr().out.splitlines()[-4:]
    assert report == f"report: out_{name}/report.html" and model == f"model: out_{name}"
    command = "grpo --model_name_or_path model" if name == "reward" else f"chat out_{name}"
    assert re.fullmatch(f"next: .*{command}.*", then) and json.loads(result)["recipe"] == name
    record = read_run(f"out_{name}")
    assert record.learns_from == "data" and record.about["held_out_prompts"] == 8
    assert set(record.series("loss")) == {2, 3}  # the last step too, which logging_steps leaves out
    assert record.seconds > 0


def test_in_chinese(start, capsys):
    page = (run("sft", "--language", "zh", "--max_length", "4") / "report.html").read_text()
    told = capsys.readouterr().out
    assert "报告：out_sft/report.html" in told and "下一步：" in told and "第 3/3 步：loss" in told
    assert "8 行里有 8 行超过 4 个 token" in told
    assert "训练 loss 与留出 loss" in page and "Training" not in page.partition("<script")[0]
    assert main(["report", "out_sft", "--language", "en"]) == 0
    assert "Training and held-out loss" in Path("out_sft/report.html").read_text()


def test_the_locale_chooses(start, capsys, monkeypatch):
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    run("reward")
    assert "报告：out_reward/report.html" in capsys.readouterr().out


def test_another_language_is_refused_before_anything_is_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where there is no model
    with raises_naming(ValueError, "language", "'fr'"):
        run("sft", "--language", "fr")


def test_how_a_run_ended_is_told(start):
    with raises_naming(NotFiniteError, "step"):
        run("sft", "--learning_rate", "1e38", "--max_steps", "9", "--logging_steps", "1")
    page = Path("out_sft/report.html")
    assert main(["report", "out_sft"]) == 0
    assert "with NotFiniteError" in page.read_text()


def test_secrets_are_not_shown(start):
    page = (run("sft", "--hub_token", "hf_abcdefghijkl") / "report.html").read_text()
    assert "hf_abcdefghijkl" not in page


def test_runs_of_several_kinds_are_compared(start, capsys):
    for name in RECIPES:
        run(name)
    assert main(["report", *(f"out_{name}" for name in RECIPES), "--output", "page.html"]) == 0
    page = Path("page.html").read_text()
    results = page.partition("<h2>Results</h2>")[2].partition("</thead>")[0]
    heads = re.findall(r'<th scope="col">(.*?)</th>', results)
    assert {"loss at the end", "held-out loss", "held-out pairs in the right order", "tokens"} <= set(heads)
    assert not {"reward at the end", "completions"} & set(heads)  # no run has any
    titles = re.findall(r"<figcaption><b>(.*?)</b>", page)
    assert "Training and held-out loss: training" in titles and "Margin: evaluation" in titles
    assert len(set(titles)) == len(titles) and len(set(heads)) == len(heads)  # margin is `rewards/margins` for DPO
