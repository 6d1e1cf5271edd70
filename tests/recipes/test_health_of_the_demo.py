# SPDX-License-Identifier: Apache-2.0
"""The demo's model, which learns to add under its own settings, under settings that are wrong."""

import embedded_task
import grpo
import ppo
import pytest

from minimind_hf import GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ALGORITHMS = {
    "grpo": (GRPOConfig, GRPOTrainer, grpo.EMBEDDED_DEFAULTS),
    "ppo": (PPOConfig, PPOTrainer, ppo.EMBEDDED_DEFAULTS),
}


def constant(completions, **columns):
    return [1.0] * len(completions)


def number_of_ones(completions, **columns):
    return [float(completion[0]["content"].count("1")) for completion in completions]


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Where reinforcement learning begins: about half of the answers are right."""
    folder = tmp_path_factory.mktemp("start")
    embedded_task.make_start(folder, 400, 0.45, seed=42, device="cpu")
    return folder


def run(start, folder, algorithm: str, steps: int, rewards=embedded_task.REWARDS, **changes) -> set[str]:
    """The rules that spoke."""
    config_class, trainer_class, settings = ALGORITHMS[algorithm]
    settings = settings | {"output_dir": str(folder), "max_steps": steps, "use_cpu": True, "disable_tqdm": True}
    train, _ = embedded_task.split_sums()
    trainer = trainer_class(
        str(start), rewards, config_class(**settings | changes), train_dataset=embedded_task.as_dataset(train)
    )
    trainer.train()
    return {message.rule for message in trainer.health.messages}


def test_the_demos_own_settings(start, tmp_path):
    assert run(start, tmp_path, "grpo", steps=60) == set()


def test_learning_rate_of_3e_3(start, tmp_path):
    assert "reward_fell" in run(start, tmp_path, "grpo", steps=60, learning_rate=3e-3)


def test_beta_0_and_a_reward_that_can_be_hacked(start, tmp_path):
    rules = run(start, tmp_path, "grpo", steps=80, rewards=number_of_ones, beta=0.0, learning_rate=1e-3)
    assert "reward_hacking" in rules


def test_temperature_of_001(start, tmp_path):
    assert "no_group_variance" in run(start, tmp_path, "grpo", steps=12, temperature=0.01)


def test_constant_reward(start, tmp_path):
    assert run(start, tmp_path, "grpo", steps=10, rewards=constant) == {"reward_constant"}


def test_critic_learning_rate_of_0(start, tmp_path):
    rules = run(start, tmp_path, "ppo", steps=100, critic_learning_rate=0.0, mini_batch_size=128)
    assert rules & {"critic_useless", "critic_loss_not_falling"}
