# SPDX-License-Identifier: Apache-2.0
"""PPO trainers for tests: tiny models, scripted completions, plain SGD."""

from pathlib import Path

import torch
from peft import LoraConfig
from tiny import PPO, share_of_a, tiny_trainer

from minimind_hf import PPOConfig, PPOTrainer


def lora(**changes) -> LoraConfig:
    return LoraConfig(**{"r": 4, "lora_alpha": 16, "target_modules": "all-linear", **changes})


def make_trainer(
    folder: Path,
    model=None,
    reward=share_of_a,
    engine="scripted",
    peft_config=None,
    prompts=24,
    eval_dataset=None,
    **changes,
) -> PPOTrainer:
    config = PPOConfig(output_dir=str(folder), **PPO | changes)
    return tiny_trainer(config, model, reward, prompts, engine, eval_dataset=eval_dataset, peft_config=peft_config)


def copied(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def assert_equal(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def log_of(trainer: PPOTrainer, name: str) -> list[float]:
    """Values of one metric, one per step that has it."""
    return [entry[name] for entry in trainer.state.log_history if "loss" in entry and name in entry]
