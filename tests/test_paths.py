# SPDX-License-Identifier: Apache-2.0
"""A model folder that lacks something is refused by what it lacks, wherever a model is loaded from a folder."""

import json
from pathlib import Path

import pytest
from naming import raises_naming
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tiny import QUIET, make_llama, make_policy, make_prompts, make_tokenizer, share_of_a

from minimind_hf import GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer
from minimind_hf.inference import load_for_inference


def saved(folder: Path, model=None) -> Path:
    (model or make_llama()).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def without(folder: Path, name: str, file: str = "model.safetensors") -> Path:
    tensors = load_file(folder / file)
    del tensors[next(key for key in tensors if name in key)]
    save_file(tensors, folder / file, metadata={"format": "pt"})
    return folder


def start_rl(config, trainer, folder: Path, out: Path):
    shape = {"num_generations": 2, "per_device_train_batch_size": 4, "max_completion_length": 8}
    return trainer(str(folder), share_of_a, config(output_dir=str(out), **QUIET, **shape), make_prompts(4))


def supervised(recipe: str, row: dict):
    def start(folder: Path, out: Path):
        out.mkdir()
        (out / "data.jsonl").write_text(json.dumps(row) + "\n")
        flags = ["--use_cpu", "--bf16", "false", "--report_to", "none", "--dataset_name", str(out / "data.jsonl")]
        places = ["--model_name_or_path", str(folder), "--output_dir", str(out / "run"), "--max_steps", "1"]
        __import__(recipe).main([*flags, *places])

    return start


PREFERENCE = {
    "chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
    "rejected": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "c"}],
}
STARTS = {
    "grpo": lambda folder, out: start_rl(GRPOConfig, GRPOTrainer, folder, out),
    "ppo": lambda folder, out: start_rl(PPOConfig, PPOTrainer, folder, out),
    "sft": supervised("sft", {"text": "abc"}),
    "dpo": supervised("dpo", PREFERENCE),
    "reward": supervised("reward", PREFERENCE),
    "chat and eval": lambda folder, out: load_for_inference(folder),
}


@pytest.mark.parametrize("start", STARTS)
def test_a_lacking_tensor_is_named(tmp_path, start):
    folder = without(saved(tmp_path / "model"), "layers.1.mlp.up_proj")
    with raises_naming(ValueError, folder, "model.layers.1.mlp.up_proj.weight"):
        STARTS[start](folder, tmp_path / "out")


@pytest.mark.parametrize("start", STARTS)
def test_lacking_files_are_named(tmp_path, start):
    (tmp_path / "empty").mkdir()
    with raises_naming(ValueError, tmp_path / "empty", "config.json", "is empty"):
        STARTS[start](tmp_path / "empty", tmp_path / "out1")
    make_llama().save_pretrained(tmp_path / "bare")
    with raises_naming(ValueError, tmp_path / "bare", "tokenizer", "config.json"):
        STARTS[start](tmp_path / "bare", tmp_path / "out2")
    folder = saved(tmp_path / "no_weights")
    (folder / "model.safetensors").unlink()
    with raises_naming(ValueError, tmp_path / "no_weights", "weights", "model.safetensors"):
        STARTS[start](folder, tmp_path / "out3")


def test_tied_weights_are_not_missing(tmp_path):
    folder = saved(tmp_path / "model", make_policy())  # saves no lm_head
    assert load_for_inference(folder) and start_rl(GRPOConfig, GRPOTrainer, folder, tmp_path / "out")


def test_a_lacking_tensor_of_an_adapter_is_named(tmp_path):
    base = saved(tmp_path / "base")
    from transformers import AutoModelForCausalLM

    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(r=2, target_modules="all-linear"))
    model.save_pretrained(tmp_path / "adapter")
    make_tokenizer().save_pretrained(tmp_path / "adapter")
    start_rl(GRPOConfig, GRPOTrainer, tmp_path / "adapter", tmp_path / "out")
    without(tmp_path / "adapter", "layers.1.mlp.up_proj.lora_B", "adapter_model.safetensors")
    with raises_naming(ValueError, tmp_path / "adapter", "layers.1.mlp.up_proj.lora_B"):
        start_rl(GRPOConfig, GRPOTrainer, tmp_path / "adapter", tmp_path / "out2")


@pytest.mark.parametrize("start", ["sft", "dpo", "reward"])
def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path, start):
    folder = saved(tmp_path / "model")
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["<more>"])
    tokenizer.save_pretrained(folder)
    with raises_naming(ValueError, 260, 259):
        STARTS[start](folder, tmp_path / "out")
