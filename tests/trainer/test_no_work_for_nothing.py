# SPDX-License-Identifier: Apache-2.0
"""Completions that teach nothing cost no pass in the update, and the gradient is the same as with the work done."""

import pytest
import torch
from tiny import GRPO, PPO, ScriptedEngine, make_policy, share_of_a, tiny_trainer

from minimind_hf import GRPOConfig, PPOConfig
from minimind_hf.trainer.steps import FourSteps


class Cuts(ScriptedEngine):
    """Says of every third completion that it was cut."""

    def generate(self, *args):
        rollouts = super().generate(*args)
        for rollout in rollouts[::3]:
            rollout.finish_reason = "length"
        return rollouts


def half_teaches(completion_ids, **_):
    """Every second group has equal rewards."""
    rewards = share_of_a(completion_ids)
    return [0.5 if index // 4 % 2 else reward for index, reward in enumerate(rewards)]


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Trains a float64 policy, with completions that teach nothing computed or not."""

    def train(all_work: bool, reward=half_teaches, config_class=GRPOConfig, **settings):
        base = GRPO if config_class is GRPOConfig else PPO
        penalty = {"beta": 0.0} if config_class is GRPOConfig else {}
        config = config_class(output_dir=str(tmp_path), **base | penalty | settings)
        trainer = tiny_trainer(config, make_policy().double(), reward, engine=Cuts(config.temperature))
        computed, gradients = [], []
        if all_work:
            monkeypatch.setattr(type(trainer), "learns", lambda self, batch: [True] * len(batch))
        loss, norm = trainer.loss, trainer._get_grad_norm

        def counting(model, batch, *rest):
            computed.append(len(batch))
            return loss(model, batch, *rest)

        def keeping(model, **rest):
            gradients.append(torch.cat([p.grad.flatten() for p in trainer.policy.parameters() if p.grad is not None]))
            return norm(model, **rest)

        monkeypatch.setattr(trainer, "loss", counting)
        monkeypatch.setattr(trainer, "_get_grad_norm", keeping)
        trainer.train()
        monkeypatch.undo()
        return trainer, computed, gradients

    return train


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"loss_type": "grpo", "epsilon": 0.1, "num_iterations": 2},
        {"loss_type": "bnpo"},
        {"loss_type": "sapo"},
        {"loss_type": "vespo"},
        {"loss_type": "luspo", "importance_sampling_level": "sequence"},
        {"forward_layout": "padded"},
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
        {"max_tokens_per_microbatch": 30},
    ],
    ids=str,
)
def test_groups_without_advantage_are_not_computed_and_the_gradient_is_the_same(train, settings):
    _, lazy, gradients = train(False, **settings)
    _, busy, expected = train(True, **settings)
    assert sum(lazy) == sum(busy) / 2
    assert len(gradients) == len(expected) > 1
    for mine, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-15, rtol=1e-13)


@pytest.mark.parametrize("settings", [{"beta": 0.1}, {"entropy_coef": 0.1}, {"top_entropy_quantile": 0.5}], ids=str)
def test_what_else_moves_the_policy_needs_all_completions(train, settings):
    _, computed, _ = train(False, **settings)
    assert computed == [8, 8]


def test_completions_that_the_loss_masks_out_are_not_computed(train):
    _, lazy, gradients = train(False, share_of_a, mask_truncated_completions=True)
    _, busy, expected = train(True, share_of_a, mask_truncated_completions=True)
    assert sum(lazy) < sum(busy)
    for mine, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-15, rtol=1e-13)


def test_a_step_without_any_advantage_moves_by_momentum_alone(train):
    def equal(completions, **_):
        return [1.0] * len(completions)

    for optim in ("sgd", "adamw_torch"):
        lazy, computed, _ = train(False, equal, optim=optim, weight_decay=0.1, learning_rate=0.01)
        busy, _, _ = train(True, equal, optim=optim, weight_decay=0.1, learning_rate=0.01)
        assert computed == []
        for mine, theirs in zip(lazy.policy.parameters(), busy.policy.parameters(), strict=True):
            assert torch.equal(mine, theirs)


def test_ppo_leaves_out_masked_completions(train):
    settings = {"mask_truncated_completions": True, "ppo_update_iters": 2}
    lazy, computed, _ = train(False, share_of_a, PPOConfig, **settings)
    busy, all_of_them, _ = train(True, share_of_a, PPOConfig, **settings)
    assert sum(computed) < sum(all_of_them)
    for mine, theirs in zip(lazy.policy.parameters(), busy.policy.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=0)


def test_a_custom_loss_is_not_assumed_to_need_an_advantage():
    from minimind_hf.algorithms import OBJECTIVES, Objective

    assert all(row.needs_advantage for row in OBJECTIVES.values())
    assert not Objective(lambda inputs, settings: inputs.logps, "mine").needs_advantage
    assert FourSteps.learns is not None
