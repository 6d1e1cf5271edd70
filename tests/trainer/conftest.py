# SPDX-License-Identifier: Apache-2.0
"""A trainer with scripted completions, so that runs of different shapes train on the same tokens."""

import pytest
from tiny import QUIET, ScriptedEngine, make_policy, make_prompts, make_tokenizer, share_of_a

from minimind_hf import GRPOConfig, GRPOTrainer


@pytest.fixture
def make_config(tmp_path):
    def make(**changes) -> GRPOConfig:
        settings = {
            "output_dir": str(tmp_path / "run"),
            **QUIET,
            "max_steps": 2,
            "optim": "sgd",
            "learning_rate": 0.5,
            "lr_scheduler_type": "constant",
            "max_grad_norm": 0.0,
            "num_generations": 4,
            "per_device_train_batch_size": 8,
            "max_completion_length": 8,
        }
        return GRPOConfig(**settings | changes)

    return make


@pytest.fixture
def make_trainer(make_config):
    def make(
        model=None, reward=share_of_a, prompts=None, scripted=True, config=None, engine=None, **changes
    ) -> GRPOTrainer:
        config = config or make_config(**changes)
        return GRPOTrainer(
            make_policy() if model is None else model,
            reward,
            config,
            train_dataset=make_prompts(12) if prompts is None else prompts,
            processing_class=make_tokenizer(),
            rollout_engine=engine or (ScriptedEngine(config.temperature) if scripted else None),
        )

    return make
