# SPDX-License-Identifier: Apache-2.0
"""A distillation that stops and goes on equals one that never stopped, bit for bit, whatever its teacher is."""

import logging

import pytest
import torch
from naming import assert_names
from peft import LoraConfig, get_peft_model
from tiny import QUIET, SIZES, make_policy, make_prompts, tiny_trainer
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from minimind_hf import DistillConfig

ROWS = [{**row, "completion": f" {row['number']}!"} for row in make_prompts(12)]
SHAPES = {
    "within a rollout": {"per_device_train_batch_size": 4, "steps_per_generation": 4},
    "a share from the data": {"lmbda": 0.5, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 4},
    "a share from the teacher": {"lmbda": 0.5, "seq_kd": True, "num_generations": 1},
}


def settings(folder, **changes) -> DistillConfig:
    own = {"max_steps": 7, "save_strategy": "steps", "learning_rate": 1e-2, "num_generations": 2, "beta": 0.5}
    return DistillConfig(output_dir=str(folder), **{**QUIET, **SIZES, **own, **changes})


def trained(folder, teacher, model=None, checkpoint=None, peft_config=None, **changes):
    config = settings(folder, **changes)
    trainer = tiny_trainer(config, model, None, ROWS, None, teacher_model=teacher, peft_config=peft_config)
    trainer.train(resume_from_checkpoint=checkpoint)
    return trainer


def assert_equal_runs(straight, resumed):
    for name, tensor in straight.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name
    logs = [
        {entry["step"]: (entry["loss"], entry["divergence"]) for entry in trainer.state.log_history if "loss" in entry}
        for trainer in (straight, resumed)
    ]
    assert logs[0] == logs[1] and len(logs[0]) == 7


@pytest.mark.slow
@pytest.mark.parametrize("stop", [2, 3, 5])
@pytest.mark.parametrize("shape", SHAPES)
def test_resumed_equals_straight(tmp_path, shape, stop):
    straight = trained(tmp_path / "straight", make_policy(seed=1), save_steps=stop, **SHAPES[shape])
    checkpoint = str(tmp_path / "straight" / f"checkpoint-{stop}")
    resumed = trained(
        tmp_path / "resumed", make_policy(seed=1), checkpoint=checkpoint, save_steps=100, **SHAPES[shape]
    )
    assert_equal_runs(straight, resumed)


def test_adapters_with_a_teacher_on_their_base(tmp_path):
    make_policy().save_pretrained(tmp_path / "base")
    teacher = get_peft_model(
        AutoModelForCausalLM.from_pretrained(tmp_path / "base"), LoraConfig(r=2, target_modules="all-linear")
    )
    for name, parameter in teacher.named_parameters():
        if "lora_B" in name:
            parameter.data.fill_(0.02)
    teacher.save_pretrained(tmp_path / "teacher")
    own = {"peft_config": LoraConfig(r=4, target_modules="all-linear"), "save_steps": 3}
    places = str(tmp_path / "teacher"), str(tmp_path / "base")
    straight = trained(tmp_path / "straight", *places, **own)
    checkpoint = tmp_path / "straight" / "checkpoint-3"
    assert not (checkpoint / "teacher").exists() and straight.teacher.model is None
    resumed = trained(tmp_path / "resumed", *places, checkpoint=str(checkpoint), **own)
    assert_equal_runs(straight, resumed)


def test_another_teacher_is_said(tmp_path, caplog):
    trained(tmp_path / "run", make_policy(seed=1), max_steps=2, save_steps=2)
    checkpoint = str(tmp_path / "run" / "checkpoint-2")
    transformers_logging.enable_propagation()
    try:
        with caplog.at_level(logging.WARNING):
            trained(tmp_path / "same", make_policy(seed=1), checkpoint=checkpoint, max_steps=3, save_steps=9)
        assert "teacher" not in caplog.text
        with caplog.at_level(logging.WARNING):
            trained(tmp_path / "other", make_policy(seed=2), checkpoint=checkpoint, max_steps=3, save_steps=9)
        assert_names(caplog.text, checkpoint, "teacher")
    finally:
        transformers_logging.disable_propagation()
