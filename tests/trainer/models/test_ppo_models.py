# SPDX-License-Identifier: Apache-2.0
"""PPO on other models, its evaluation, its log, its settings."""

import os
from pathlib import Path

import pytest
import torch
from naming import raises_naming
from ppo_tools import copied, log_of, lora, make_trainer
from tiny import PPO, make_llama, make_policy, make_prompts, share_of_a
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback

from minimind_hf import PPOConfig, PPOTrainer

LOGGED = {
    "approx_kl",
    "clip_fraction",
    "value_clip_fraction",
    "ratio_mean",
    "kl_ref",
    "policy_loss",
    "critic_loss",
    "explained_variance",
    "returns/mean",
    "values/mean",
    "advantages/mean",
    "entropy",
    "reward",
    "learning_rate",
    "critic_learning_rate",
    "grad_norm",
    "critic_grad_norm",
    "early_stopped",
}


def make_gpt2() -> GPT2LMHeadModel:
    """Another architecture: its classifier has its own names and hands nothing on to the attention."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=259, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2, pad_token_id=0
    )
    return GPT2LMHeadModel(config).eval()


MODELS = {
    "minimind": make_policy,
    "top-1 experts": lambda: make_policy(use_moe=True),
    "top-2 experts": lambda: make_policy(use_moe=True, num_experts_per_tok=2),
    "llama": make_llama,
    "gpt2": make_gpt2,
}


@pytest.mark.parametrize("peft_config", [None, lora(target_modules=None)], ids=["full", "lora"])
@pytest.mark.parametrize("name", MODELS)
def test_three_steps(tmp_path, name, peft_config):
    if peft_config is not None:
        peft_config.target_modules = ["c_attn"] if name == "gpt2" else ["q_proj", "v_proj"]
    trainer = make_trainer(
        tmp_path,
        MODELS[name](),
        engine=None,
        peft_config=peft_config,
        mini_batch_size=4,
        max_steps=3,
        optim="adamw_torch",
        learning_rate=1e-3,
        critic_learning_rate=1e-3,
        disable_dropout=True,  # GPT-2 has some
    )
    before = copied(trainer.model)
    trainer.train()
    for model in ("policy.", "critic."):
        names = [n for n, p in trainer.model.named_parameters() if p.requires_grad and n.startswith(model)]
        assert any(not torch.equal(copied(trainer.model)[n], before[n]) for n in names), model
    assert log_of(trainer, "ratio_mean")[0] == pytest.approx(1, abs=1e-4)
    assert log_of(trainer, "kl_ref")[0] == pytest.approx(0, abs=1e-9)
    assert all(torch.tensor(log_of(trainer, "loss")).isfinite())
    assert ("aux_loss" in trainer.state.log_history[0]) == ("experts" in name)


@pytest.mark.slow
def test_three_steps_of_a_real_llama(tmp_path):
    folder = os.environ.get("REAL_MODEL_DIR")
    if not folder or not Path(folder).is_dir():
        pytest.skip("REAL_MODEL_DIR names no folder of a real model")
    config = PPOConfig(
        output_dir=str(tmp_path),
        **PPO
        | {
            "optim": "adamw_torch",
            "learning_rate": 1e-6,
            "critic_learning_rate": 1e-5,
            "per_device_train_batch_size": 4,
            "mini_batch_size": 2,
            "max_completion_length": 16,
            "max_steps": 3,
        },
    )
    prompts = [{"prompt": [{"role": "user", "content": row["prompt"]}]} for row in make_prompts(8)]
    trainer = PPOTrainer(folder, share_of_a, config, train_dataset=prompts, peft_config=lora())
    trainer.train()
    assert log_of(trainer, "kl_ref")[0] == 0.0
    assert log_of(trainer, "ratio_mean")[0] == pytest.approx(1, abs=1e-3)
    assert all(torch.tensor(log_of(trainer, "loss")).isfinite())
    assert log_of(trainer, "critic_grad_norm")[0] > 0


def test_log_has_what_ppo_is_judged_by(tmp_path):
    trainer = make_trainer(tmp_path, max_grad_norm=1.0)
    trainer.train()
    assert set(trainer.state.log_history[0]) >= LOGGED
    assert log_of(trainer, "learning_rate") == [0.5, 0.5]
    assert log_of(trainer, "critic_learning_rate") == [0.1, 0.1]


def test_both_learning_rates_follow_the_schedule(tmp_path):
    trainer = make_trainer(
        tmp_path, max_steps=10, lr_scheduler_type="cosine_with_min_lr", learning_rate=0.01, critic_learning_rate=0.03
    )
    trainer.train()
    rates = log_of(trainer, "learning_rate")
    assert (rates[0], rates[5]) == pytest.approx((0.01, 0.0055))  # half way, between 0.01 and its tenth
    assert log_of(trainer, "critic_learning_rate") == pytest.approx([3 * rate for rate in rates])


def test_weight_decay_spares_norms_and_biases_of_both_models(tmp_path):
    trainer = make_trainer(tmp_path, weight_decay=0.1)
    trainer.create_optimizer()
    decayed = {
        (group["model"], group["weight_decay"], group["lr"]): len(group["params"])
        for group in trainer.optimizer.param_groups
    }
    # 2 layers: 7 matrices each, embeddings (tied); 4 norms each and the final one; and in the critic head and its bias
    assert decayed == {
        ("policy", 0.1, 0.5): 15,
        ("policy", 0.0, 0.5): 9,
        ("critic", 0.1, 0.1): 16,
        ("critic", 0.0, 0.1): 10,
    }


class GradientsAtTheStep(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        models = self.trainer.model.parameters_by_model()
        self.norms = [torch.cat([p.grad.flatten() for p in parameters]).norm().item() for parameters in models]


def test_gradients_of_each_model_are_clipped_by_themselves(tmp_path):
    norms = {}
    for limit in (0.0, 0.01):
        watch = GradientsAtTheStep()
        watch.trainer = trainer = make_trainer(tmp_path / str(limit), max_grad_norm=limit, max_steps=1)
        trainer.add_callback(watch)
        trainer.train()
        norms[limit] = watch.norms
        logged = trainer.state.log_history[0]
        assert norms[0.0] == pytest.approx([logged["grad_norm"], logged["critic_grad_norm"]])
    assert min(norms[0.0]) > 0.02
    assert norms[0.01] == pytest.approx([0.01, 0.01], rel=1e-3)


def test_evaluation_moves_nothing_and_measures_the_critic(tmp_path):
    trainer = make_trainer(tmp_path, make_policy(), peft_config=lora(), per_device_eval_batch_size=4)
    before = copied(trainer.model)
    first = trainer.evaluate(make_prompts(8))
    trainer.train()
    last = trainer.evaluate(make_prompts(8))
    for name in ("reward", "explained_variance", "critic_loss", "values/mean", "kl_ref"):
        assert f"eval_{name}" in first
    assert first["eval_kl_ref"] == 0.0
    assert first["eval_critic_loss"] != last["eval_critic_loss"]
    moved = copied(trainer.model)
    trainer.evaluate(make_prompts(8))
    after = copied(trainer.model)
    assert all(torch.equal(after[name], tensor) for name, tensor in moved.items())
    assert any(not torch.equal(after[name], tensor) for name, tensor in before.items())


def test_steps_and_schedule_do_not_depend_on_early_stops(tmp_path):
    """12 prompts, 4 a rollout of 2 passes over 2 mini-batches: 4 steps a rollout, 12 an epoch."""
    counts = []
    for limit in (None, 0.0):
        trainer = make_trainer(
            tmp_path / str(limit),
            prompts=make_prompts(12),
            per_device_train_batch_size=4,
            mini_batch_size=2,
            max_steps=-1,
            num_train_epochs=2,
            early_stop_kl=limit,
            learning_rate=1e-3,
            lr_scheduler_type="linear",
        )
        trainer.train()
        counts.append((trainer.state.global_step, log_of(trainer, "learning_rate")))
    assert counts[0] == counts[1]
    assert counts[0][0] == 24
    assert log_of(trainer, "early_stopped").count(1.0) > 12


def test_a_kl_at_the_limit_does_not_stop(tmp_path):
    trainer = make_trainer(tmp_path, early_stop_kl=0.25)
    for total, stops in ((1.0, False), (1.0 + 1e-12, True)):
        trainer._step_kl.copy_(torch.tensor([total, 4.0], dtype=torch.float64))  # over 4 tokens
        assert trainer._is_too_far() == stops


REFUSED = [
    ({"mini_batch_size": 3}, ["per_device_train_batch_size", 8, "mini_batch_size", 3]),
    (
        {"gradient_accumulation_steps": 3, "steps_per_generation": 1},
        ["mini_batch_size", 2, "gradient_accumulation_steps", 3, 6],
    ),
    ({"mini_batch_size": 0}, ["mini_batch_size", 1, 0]),
    ({"ppo_update_iters": 0}, ["ppo_update_iters", 1, 0]),
    ({"num_generations": 3}, ["per_device_train_batch_size", 8, "num_generations", 3]),
    ({"clip_epsilon": -0.1}, ["clip_epsilon", -0.1]),
    ({"cliprange_value": -0.1}, ["cliprange_value", -0.1]),
    ({"kl_coef": -1.0}, ["kl_coef", -1.0]),
    ({"vf_coef": -1.0}, ["vf_coef", -1.0]),
    ({"gamma": 1.1}, ["gamma", 1.1]),
    ({"lam": -0.5}, ["lam", -0.5]),
    ({"early_stop_kl": -1.0}, ["early_stop_kl", -1.0]),
    ({"critic_learning_rate": -1e-6}, ["critic_learning_rate", -1e-6]),
    ({"loss_aggregation": "mean"}, ["loss_aggregation", "'mean'"]),
]


@pytest.mark.parametrize(("changes", "named"), REFUSED, ids=lambda value: str(value)[:40])
def test_refused(changes, named, tmp_path):
    with raises_naming(ValueError, *named):
        PPOConfig(output_dir=str(tmp_path), use_cpu=True, **changes)


def test_defaults_are_those_of_the_design(tmp_path):
    config = PPOConfig(output_dir=str(tmp_path), use_cpu=True)
    expected = {
        "num_generations": 1,
        "clip_epsilon": 0.2,
        "cliprange_value": 0.2,
        "vf_coef": 0.5,
        "kl_coef": 0.02,
        "gamma": 1.0,
        "lam": 0.95,
        "early_stop_kl": 0.25,
        "ppo_update_iters": 2,
        "mini_batch_size": 2,
        "learning_rate": 3e-7,
        "critic_learning_rate": 5e-7,
        "micro_batches_per_rollout": 8,
    }
    assert {name: getattr(config, name) for name in expected} == expected
