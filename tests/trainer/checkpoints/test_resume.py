# SPDX-License-Identifier: Apache-2.0
"""A run that stops and goes on from its checkpoint equals the run that never stopped, bit for bit."""

from pathlib import Path

import pytest
import torch
from naming import raises_naming
from peft import LoraConfig, get_peft_model
from tiny import make_policy, make_prompts

from minimind_hf.trainer.checkpoints import atomic
from minimind_hf.trainer.checkpoints.state import ROLLOUT_STATE

SHAPES = {
    "one rollout a step": {},
    "checkpoint within a rollout": {"per_device_train_batch_size": 4, "steps_per_generation": 6},
    "checkpoint between iterations": {"num_iterations": 3},
    "accumulation": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
}


def settings(**changes) -> dict:
    return {
        "scripted": False,
        "optim": "adamw_torch",
        "learning_rate": 1e-2,
        "lr_scheduler_type": "cosine_with_min_lr",
        "max_steps": 7,
        "save_strategy": "steps",
        "prompts": [{"prompt": [{"role": "user", "content": row["prompt"]}]} for row in make_prompts(7)],
        "thinking_ratio": 0.5,
        **changes,
    }


@pytest.mark.parametrize("shape", SHAPES)
def test_resumed_equals_straight(make_trainer, tmp_path, shape):
    straight = make_trainer(make_policy(), **settings(save_steps=1, **SHAPES[shape]))
    straight.train()
    for stop in (2, 3, 5, 7):
        resumed = make_trainer(
            make_policy(), output_dir=str(tmp_path / f"resumed_{stop}"), **settings(save_steps=100, **SHAPES[shape])
        )
        resumed.train(resume_from_checkpoint=f"{straight.args.output_dir}/checkpoint-{stop}")
        assert_same_state(resumed, straight)
        logs = [
            {step["step"]: (step["loss"], step.get("reward")) for step in trainer.state.log_history if "loss" in step}
            for trainer in (straight, resumed)
        ]
        assert logs[0] == logs[1]


def assert_same_state(resumed, straight):
    for name, tensor in straight.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name


def with_dropout():
    return get_peft_model(make_policy(), LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.4))


def rng_states(trainer, step: int) -> bytes:
    return Path(trainer.args.output_dir, f"checkpoint-{step}", "rng_state.pth").read_bytes()


def test_resumed_equals_straight_with_dropout(make_trainer, tmp_path):
    torch.manual_seed(0)
    shape = {"save_steps": 1, "max_steps": 7}
    straight = make_trainer(with_dropout(), **settings(**shape))
    straight.train()
    for stop in (2, 3, 5):  # an epoch has 3 steps: within it, at its end, within the next one
        torch.manual_seed(5)
        resumed = make_trainer(with_dropout(), output_dir=str(tmp_path / f"resumed_{stop}"), **settings(**shape))
        resumed.train(resume_from_checkpoint=f"{straight.args.output_dir}/checkpoint-{stop}")
        assert_same_state(resumed, straight)
        for step in range(stop + 1, 8):
            assert rng_states(straight, step) == rng_states(resumed, step), step


def test_a_checkpoint_is_whole_when_it_takes_its_place(make_trainer, monkeypatch):
    whole = {}

    def files_of(folder):
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def remember(source, target):
        move(source, target)
        whole[target] = files_of(target)

    move = atomic._move
    monkeypatch.setattr(atomic, "_move", remember)
    trainer = make_trainer(**settings(save_steps=2, max_steps=4, sync_ref_model=True, ref_model_sync_steps=1))
    trainer.train()
    assert [path.name for path in whole] == ["checkpoint-2", "checkpoint-4"]
    for checkpoint, files in whole.items():
        assert {"trainer_state.json", "optimizer.pt", "rollout_state_0.pt", "reference.pt"} <= files.keys()
        assert files_of(checkpoint) == files  # nothing came later, nothing was changed


def test_a_checkpoint_without_the_rollout_state_is_refused(make_trainer):
    trainer = make_trainer(**settings(save_steps=2, max_steps=2))
    trainer.train()
    checkpoint = f"{trainer.args.output_dir}/checkpoint-2"
    Path(checkpoint, ROLLOUT_STATE.format(rank=0)).unlink()
    with raises_naming(FileNotFoundError, f"{checkpoint}/rollout_state_0.pt", "--model_name_or_path"):
        make_trainer(**settings(save_steps=2)).train(resume_from_checkpoint=checkpoint)
