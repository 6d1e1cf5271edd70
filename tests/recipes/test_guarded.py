# SPDX-License-Identifier: Apache-2.0
"""The recipes before RL: no update that is not finite, no damaged checkpoint, and the best one is kept."""

import json
import logging
from pathlib import Path

import dpo
import pytest
import reward
import sft
import torch
from naming import raises_naming
from safetensors.torch import load_file, save_file
from tiny import make_llama, make_tokenizer
from trl import SFTConfig

from minimind_hf.data import PromptError
from minimind_hf.trainer.models.weights import NotFiniteError

PREFERENCE = {
    "chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
    "rejected": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "c"}],
}
RECIPES = [(sft, {"text": "abcdef"}), (dpo, PREFERENCE), (reward, PREFERENCE)]
FLAGS = ["--use_cpu", "--bf16", "false", "--activation_checkpointing", "false", "--report_to", "none"]


@pytest.fixture
def start(tmp_path):
    make_llama().save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def run(recipe, row, start: Path, *flags: str, out: Path | None = None) -> None:
    data = start.parent / "data.jsonl"
    data.write_text((json.dumps(row) + "\n") * 8)
    out = out or start.parent / "out"
    places = ["--model_name_or_path", str(start), "--dataset_name", str(data), "--output_dir", str(out)]
    recipe.main([*FLAGS, *places, "--per_device_train_batch_size", "2", *flags])


@pytest.mark.parametrize(("recipe", "row"), RECIPES)
def test_weights_with_a_nan_are_not_trained(start, recipe, row):
    tensors = load_file(start / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][0, 0] = float("nan")
    save_file(tensors, start / "model.safetensors", metadata={"format": "pt"})
    with raises_naming(NotFiniteError, "step 1", "loss", "nan", "learning_rate"):
        run(recipe, row, start, "--max_steps", "2")
    assert not (start.parent / "out" / "model.safetensors").exists()


def test_a_run_that_diverges_stops_before_the_update(start):
    with raises_naming(NotFiniteError, "step", start.parent / "out" / "checkpoint-1"):
        run(sft, {"text": "abcdef"}, start, "--max_steps", "9", "--learning_rate", "1e38", "--save_steps", "1")
    assert load_file(start.parent / "out" / "checkpoint-1" / "model.safetensors")


def test_a_changed_byte_of_a_checkpoint_is_named(start):
    run(sft, {"text": "abcdef"}, start, "--max_steps", "1", "--save_steps", "1")
    checkpoint = start.parent / "out" / "checkpoint-1"
    content = bytearray((checkpoint / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (checkpoint / "model.safetensors").write_bytes(content)
    for wanted in (str(checkpoint), "true"):
        with raises_naming(ValueError, checkpoint / "model.safetensors"):
            run(sft, {"text": "abcdef"}, start, "--max_steps", "2", "--resume_from_checkpoint", wanted)


def test_the_best_checkpoint_outlives_a_move(start, monkeypatch):
    monkeypatch.chdir(start.parent)
    best = ["--eval_strategy", "steps", "--eval_steps", "1", "--save_steps", "1", "--load_best_model_at_end", "true"]
    best += [
        "--eval_dataset_name",
        "data.jsonl",
        "--metric_for_best_model",
        "eval_loss",
        "--greater_is_better",
        "true",
    ]
    row = {"text": "abcdef"}  # the loss falls, so that step 1 has the greatest
    run(sft, row, start, *best, "--max_steps", "3", "--save_total_limit", "2", "--learning_rate", "1e-2")
    (start.parent / "out").rename(start.parent / "moved")
    expected = load_file("moved/checkpoint-1/model.safetensors")
    resumed = ["--resume_from_checkpoint", str(start.parent / "moved" / "checkpoint-3"), "--learning_rate", "1e-2"]
    run(sft, row, start, *best, "--max_steps", "5", "--save_total_limit", "1", *resumed, out=Path("moved"))
    for name, tensor in load_file("moved/model.safetensors").items():
        assert torch.equal(tensor, expected[name]), name


def test_nothing_left_to_train_is_said(start, monkeypatch):
    said = []
    logger = logging.getLogger("minimind_hf.trainer.checkpoints.data_order")
    monkeypatch.setattr(logger, "warning", lambda text, *values: said.append(text % values))
    run(sft, {"text": "abcdef"}, start, "--max_steps", "1", "--save_steps", "1")
    run(sft, {"text": "abcdef"}, start, "--max_steps", "1", "--resume_from_checkpoint", "true")
    assert len(said) == 1 and "of step 1, and this run has 1" in said[0]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--save_steps", "0"], ["save_steps", 0.0]),
        (["--save_steps", "-1"], ["save_steps", -1.0]),
        (["--eval_strategy", "steps", "--eval_steps", "-2"], ["eval_steps", -2.0]),
        (["--max_length", "-3"], ["max_length", -3]),
        (["--max_length", "0"], ["max_length", 0]),
    ],
)
@pytest.mark.parametrize(("recipe", "row"), RECIPES)
def test_numbers_that_mean_nothing_are_refused(start, recipe, row, flags, named):
    assert SFTConfig.save_strategy == "steps"
    with raises_naming(ValueError, *named):
        run(recipe, row, start, *flags)


@pytest.mark.parametrize("empty", ["", " \n"])
def test_an_empty_turn_of_the_assistant_is_refused(start, empty):
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": empty}]}
    with raises_naming(PromptError, "line 1", "message 1", "assistant", "empty"):
        run(sft, row, start)
