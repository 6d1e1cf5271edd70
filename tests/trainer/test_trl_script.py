# SPDX-License-Identifier: Apache-2.0
"""trl's own GRPO scripts with a custom reward, their import changed and nothing else."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import trl
from tiny import make_llama, make_policy, make_prompts, make_tokenizer
from transformers import AutoModelForCausalLM

SCRIPT = Path(trl.__file__).parent / "scripts" / "grpo.py"

QUICKSTART = """
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

dataset = load_dataset("{folder}/data", split="train")


# Define the reward function, which rewards completions that are close to 20 characters
def reward_len(completions, **kwargs):
    return [-abs(20 - len(completion)) for completion in completions]


training_args = GRPOConfig(output_dir="{folder}/run", logging_steps=1, max_steps=2, use_cpu=True, report_to="none",
                           max_completion_length=8, save_strategy="no", disable_tqdm=True)
trainer = GRPOTrainer(
    model="{folder}/model",
    reward_funcs=reward_len,
    args=training_args,
    train_dataset=dataset,
)
trainer.train()
"""


def with_changed_import(source: str) -> str:
    """Takes GRPOConfig and GRPOTrainer from here; what else trl has is imported as before."""
    lines = []
    for line in source.splitlines():
        before, word, names = line.partition("from trl import ")
        imported = [name.strip() for name in names.split(",")]
        ours = [name for name in imported if name in ("GRPOConfig", "GRPOTrainer")]
        if not word or not ours:
            lines.append(line)
            continue
        rest = [name for name in imported if name not in ours]
        lines.append(f"{before}from minimind_hf import {', '.join(ours)}")
        if rest:
            lines.append(f"{before}from trl import {', '.join(rest)}")
    return "\n".join(lines)


@pytest.fixture(params=[make_policy, make_llama], ids=["minimind", "llama"])
def folder(request, tmp_path, monkeypatch) -> Path:
    """A model, prompts of both splits, and a module with a reward, in the working directory."""
    request.param().save_pretrained(tmp_path / "model")
    tokenizer = make_tokenizer()
    tokenizer.pad_token = None  # as many models have it; trl takes the EOS
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "data").mkdir()
    for split, count in (("train", 16), ("test", 4)):
        rows = [json.dumps(row) + "\n" for row in make_prompts(count)]
        (tmp_path / "data" / f"{split}.jsonl").write_text("".join(rows), encoding="utf-8")
    (tmp_path / "custom_reward_module.py").write_text(
        "def shorter(completions, number, **kwargs):\n    return [-float(len(text)) for text in completions]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def run(folder: Path, source: str, arguments: str, monkeypatch) -> dict:
    script = folder / "script.py"
    script.write_text(with_changed_import(source), encoding="utf-8")
    assert "minimind_hf" in script.read_text() and script.read_text() != source
    monkeypatch.setattr(sys, "argv", [str(script), *arguments.split()])
    return runpy.run_path(str(script), run_name="__main__")


def test_the_script_that_trl_ships(folder, monkeypatch):
    arguments = (
        "--model_name_or_path model --dataset_name data --output_dir run --use_cpu --report_to none --max_steps 2 "
        "--reward_funcs custom_reward_module.shorter think_format_reward --reward_weights 1.0 0.0 "
        "--learning_rate 1e-3 --max_completion_length 8 --per_device_train_batch_size 8 --num_generations 4 "
        "--save_steps 2 --eval_strategy steps --eval_steps 1 --per_device_eval_batch_size 4 --beta 0.0 "
        "--loss_type dapo --temperature 1.0 --vllm_mode colocate --pad_to_multiple_of auto --disable_tqdm True "
    )
    (folder / "data" / "train.jsonl").write_text(conversations(16), encoding="utf-8")
    (folder / "data" / "test.jsonl").write_text(conversations(4), encoding="utf-8")
    (folder / "custom_reward_module.py").write_text(
        "def shorter(completions, number, **kwargs):\n    return [-float(len(c[0]['content'])) for c in completions]\n"
    )
    run(folder, SCRIPT.read_text(encoding="utf-8"), arguments, monkeypatch)
    state = json.loads((folder / "run" / "checkpoint-2" / "trainer_state.json").read_text(encoding="utf-8"))
    names = {name for log in state["log_history"] for name in log}
    assert {"rewards/shorter/mean", "eval_rewards/think_format_reward/mean"} <= names
    AutoModelForCausalLM.from_pretrained(folder / "run")


def conversations(count: int) -> str:
    rows = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in make_prompts(count)]
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_the_example_of_the_documentation(folder, monkeypatch):
    trainer = run(folder, QUICKSTART.format(folder=folder), "", monkeypatch)["trainer"]
    assert trainer.state.global_step == 2
    assert "rewards/reward_len/mean" in trainer.state.log_history[0]
