# SPDX-License-Identifier: Apache-2.0
"""The distillation recipe from end to end, in short: as a command on the embedded task, and on models of one's own."""

import json

import distill
import embedded_task
import pytest
import yaml
from launching import launch
from naming import raises_naming
from tiny import make_llama, make_policy, make_tokenizer
from transformers import AutoModelForCausalLM, LlamaForCausalLM

SMALL = ["--use_cpu", "--max_steps", "2", "--disable_tqdm", "true", "--report_to", "none"]


def last_line(output: str) -> dict:
    return json.loads(output.strip().splitlines()[-1])


def make_teacher(folder, steps: int = 5) -> None:
    """What recipes/grpo.py leaves, as far as the recipe looks at it, without the minutes that it takes."""
    embedded_task.make_start(folder / "supervised", 2, 1.0, 0, "cpu")
    embedded_task.make_start(folder, 8, 1.0, 0, "cpu")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": steps}))


@pytest.mark.slow
def test_embedded_task_as_a_command(recipes_dir, tmp_path):
    make_teacher(tmp_path / "grpo")
    flags = ["--output_dir", "out", "--teacher_model_name_or_path", "grpo", "--per_device_train_batch_size", "16"]
    done = launch(recipes_dir / "distill.py", *SMALL, *flags, folder=tmp_path)
    result = last_line(done.stdout)
    measured = ["accuracy_before", "accuracy_after", "reward_start", "reward_end"]
    measured += ["steps", "accuracy_teacher", "steps_teacher"]
    assert list(result) == ["algorithm", *measured, "seconds", "output_dir"]
    assert (result["algorithm"], result["steps"], result["steps_teacher"]) == ("gkd", 2, 5)
    assert "held-out accuracy of the teacher" in done.stdout and "before distillation" in done.stdout
    out = tmp_path / "out"
    assert (out / "report.html").is_file() and "Divergence from the teacher" in (out / "report.html").read_text()
    card = (out / "README.md").read_text()
    assert "GKD" in card and "knowledge-distillation" in card and f"{result['accuracy_after']:.4g}" in card
    start = AutoModelForCausalLM.from_pretrained(tmp_path / "grpo" / "supervised")
    after = AutoModelForCausalLM.from_pretrained(out)
    assert not start.lm_head.weight.equal(after.lm_head.weight)


@pytest.mark.slow
def test_the_teacher_of_the_embedded_task_is_made_once(tmp_path, monkeypatch, capsys):
    made = []

    def instead(folder, script, args):
        made.append(folder)
        make_teacher(folder)

    monkeypatch.setattr(distill, "train_teacher", instead)
    monkeypatch.chdir(tmp_path)
    flags = [*SMALL, "--output_dir", "out", "--per_device_train_batch_size", "8", "--max_completion_length", "8"]
    for _ in range(2):
        distill.main(flags)
    assert [str(folder) for folder in made] == ["out/teacher"]
    assert last_line(capsys.readouterr().out)["steps_teacher"] == 5


def test_a_teacher_of_the_embedded_task_that_is_none(tmp_path):
    make_policy().save_pretrained(tmp_path / "model")
    with raises_naming(ValueError, tmp_path / "model" / "supervised", "teacher_model_name_or_path"):
        distill.main([*SMALL, "--teacher_model_name_or_path", str(tmp_path / "model")])


def own(tmp_path) -> list[str]:
    for name, model in (("student", make_llama()), ("teacher", make_policy(seed=1))):
        model.save_pretrained(tmp_path / name)
        make_tokenizer().save_pretrained(tmp_path / name)
    rows = [[{"role": "user", "content": f"{n} apples?"}, {"role": "assistant", "content": f"{n}"}] for n in range(8)]
    text = "".join(json.dumps({"conversations": turns}) + "\n" for turns in rows)
    (tmp_path / "sft.jsonl").write_text(text)
    return [
        "--model_name_or_path", str(tmp_path / "student"), "--teacher_model_name_or_path", str(tmp_path / "teacher"),
        "--dataset_name", str(tmp_path / "sft.jsonl"), "--output_dir", str(tmp_path / "out"),
    ]  # fmt: skip


def test_own_models_without_rewards_by_minimind_s_settings(recipes_dir, tmp_path, capsys):
    flags = [*own(tmp_path), "--config", str(recipes_dir / "distill_minimind.yaml"), "--max_completion_length", "8"]
    distill.main([*SMALL, *flags, "--per_device_train_batch_size", "4", "--save_strategy", "no"])
    output = capsys.readouterr().out
    result = last_line(output)
    assert list(result) == ["algorithm", "reward_start", "reward_end", "seconds", "output_dir"]
    assert result["reward_start"] is None and result["reward_end"] is None
    assert "no reward was logged" not in output
    out = tmp_path / "out"
    chosen = json.loads((out / "run.json").read_text())["settings"]
    assert (chosen["rewards"], chosen["lmbda"], chosen["loss_temperature"]) == ("none", 0.5, 1.5)
    start = LlamaForCausalLM.from_pretrained(tmp_path / "student").lm_head.weight
    assert not LlamaForCausalLM.from_pretrained(out).lm_head.weight.equal(start)
    logged = [json.loads(line) for line in (out / "samples" / "early.jsonl").read_text().splitlines()]
    assert logged and all(row["reward"] is None and "advantage" not in row for row in logged)


def test_minimind_s_settings_are_those_of_its_script(recipes_dir):
    settings = yaml.safe_load((recipes_dir / "distill_minimind.yaml").read_text())
    expected = {
        "loss_temperature": 1.5,
        "learning_rate": 5e-6,
        "per_device_train_batch_size": 32,
        "num_train_epochs": 6,
        "max_completion_length": 340,
        "max_grad_norm": 1.0,
        "beta": 0.0,
    }
    assert {name: settings[name] for name in expected} == expected
