# SPDX-License-Identifier: Apache-2.0
"""PPO trainers for tests: tiny models, scripted completions, plain SGD."""

from pathlib import Path

import torch
from peft import LoraConfig
from tiny import ScriptedEngine, make_policy, make_prompts, make_tokenizer, share_of_a

from minimind_hf import PPOConfig, PPOTrainer

SETTINGS = {
    "use_cpu": True,
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
    "max_steps": 2,
    "optim": "sgd",
    "learning_rate": 0.5,
    "critic_learning_rate": 0.1,
    "lr_scheduler_type": "constant",
    "max_grad_norm": 0.0,
    "per_device_train_batch_size": 8,
    "mini_batch_size": 8,
    "max_completion_length": 8,
}


def lora(**changes) -> LoraConfig:
    return LoraConfig(**{"r": 4, "lora_alpha": 16, "target_modules": "all-linear", **changes})


def make_trainer(
    folder: Path,
    model=None,
    reward=share_of_a,
    engine="scripted",
    peft_config=None,
    prompts=None,
    eval_dataset=None,
    **changes,
) -> PPOTrainer:
    config = PPOConfig(output_dir=str(folder), **SETTINGS | changes)
    if engine == "scripted":
        engine = ScriptedEngine(config.temperature)
    return PPOTrainer(
        make_policy() if model is None else model,
        reward,
        config,
        train_dataset=make_prompts(24) if prompts is None else prompts,
        eval_dataset=eval_dataset,
        processing_class=make_tokenizer(),
        peft_config=peft_config,
        rollout_engine=engine,
    )


def copied(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def assert_equal(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def log_of(trainer: PPOTrainer, name: str) -> list[float]:
    """Values of one metric, one per step that has it."""
    return [entry[name] for entry in trainer.state.log_history if "loss" in entry and name in entry]
