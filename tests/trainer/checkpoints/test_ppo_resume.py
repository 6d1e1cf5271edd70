# SPDX-License-Identifier: Apache-2.0
"""Folders of a PPO run: a stopped run goes on bit for bit, and plain transformers loads both models."""

import shutil

import pytest
import torch
from naming import assert_names, names, raises_naming
from ppo_tools import assert_equal, copied, lora, make_trainer
from tiny import make_llama, make_policy, make_prompts
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

MODELS = {
    "full": {},
    "mixture of experts": {"model": lambda: make_policy(use_moe=True), "engine": "scripted"},
    "llama": {"model": make_llama},
    "shared base": {"peft_config": lora},
    "adapters and a critic of its own": {"peft_config": lora, "share_critic_base": False},
}
SLOW = ("mixture of experts", "llama", "adapters and a critic of its own")


def settings(**changes) -> dict:
    return {
        "engine": None,
        "optim": "adamw_torch",
        "learning_rate": 1e-2,
        "critic_learning_rate": 3e-2,
        "lr_scheduler_type": "cosine_with_min_lr",
        "max_grad_norm": 1.0,
        "early_stop_kl": 0.02,
        "per_device_train_batch_size": 4,
        "mini_batch_size": 2,
        "max_steps": 10,
        "save_strategy": "steps",
        "prompts": [{"prompt": [{"role": "user", "content": row["prompt"]}]} for row in make_prompts(7)],
        "thinking_ratio": 0.5,
        **changes,
    }


def build(folder, model=make_policy, peft_config=None, **changes):
    peft_config = peft_config and peft_config()
    return make_trainer(folder, model(), peft_config=peft_config, **settings(**changes))


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) if kind in SLOW else kind for kind in MODELS]
)
def test_resumed_equals_straight(tmp_path, kind):
    """Checkpoints within a rollout, after an early stop, and between rollouts; four steps make a rollout."""
    straight = build(tmp_path / "straight", save_steps=1, **MODELS[kind])
    straight.train()
    logs = [entry for entry in straight.state.log_history if "loss" in entry]
    stopped = [entry["step"] for entry in logs if entry["early_stopped"]]
    assert 0 < len(stopped) < 10
    within = next(step for step in stopped if step % 4)  # the rest of its rollout is to be skipped
    for stop in sorted({2, within, 8}):
        resumed = build(tmp_path / f"resumed_{stop}", save_steps=100, **MODELS[kind])
        resumed.train(resume_from_checkpoint=f"{straight.args.output_dir}/checkpoint-{stop}")
        assert_equal(copied(resumed.model), copied(straight.model))
        found, expected = (
            [(entry["step"], entry["loss"], entry["critic_learning_rate"]) for entry in trainer.state.log_history[:10]]
            for trainer in (resumed, straight)
        )
        assert found == expected
        states = [trainer.optimizer.state_dict() for trainer in (resumed, straight)]
        for parameter, state in states[1]["state"].items():
            assert_equal(states[0]["state"][parameter], state)


def test_a_checkpoint_without_its_critic_is_refused(tmp_path):
    trainer = build(tmp_path, save_steps=2, max_steps=2)
    trainer.train()
    shutil.rmtree(tmp_path / "checkpoint-2" / "critic")
    with raises_naming(FileNotFoundError, tmp_path / "checkpoint-2" / "critic", "--model_name_or_path"):
        build(tmp_path / "resumed").train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    trainer = build(tmp_path, save_steps=2, max_steps=2)
    trainer.train()
    other = build(tmp_path / "resumed", model=lambda: make_policy(num_hidden_layers=3))
    with raises_naming(ValueError, "num_hidden_layers", 3, 2):
        other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


@pytest.mark.parametrize("make_model", [make_policy, make_llama, lambda: make_policy(use_moe=True)], ids="mlx")
@pytest.mark.parametrize("where", ["", "checkpoint-2"])
def test_plain_transformers_loads_policy_and_critic(tmp_path, make_model, where):
    trainer = build(tmp_path, model=make_model, save_steps=2, max_steps=2)
    trainer.train()
    trainer.save_model()
    for auto, folder, module in (
        (AutoModelForCausalLM, tmp_path / where, trainer.model.policy),
        (AutoModelForTokenClassification, tmp_path / where / "critic", trainer.model.critic),
    ):
        loaded, info = auto.from_pretrained(folder, output_loading_info=True)
        assert not any(info[keys] for keys in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        assert_equal(copied(loaded), copied(module))
    assert loaded.config.num_labels == 1


def test_a_critic_kept_from_an_earlier_run_goes_on(tmp_path):
    first = build(tmp_path / "first", max_steps=2)
    first.train()
    first.save_model()
    second = build(tmp_path / "second", critic_model_name_or_path=str(tmp_path / "first" / "critic"))
    assert_equal(copied(second.model.critic), copied(first.model.critic))


@pytest.mark.parametrize(("critic", "remedy"), [("./none", ()), ("", ()), ("c.pth", ["minimind-hf convert c.pth"])])
def test_a_critic_that_is_not_there(tmp_path, critic, remedy):
    with raises_naming(ValueError, "critic", repr(critic), *remedy):
        build(tmp_path / "run", critic_model_name_or_path=critic)


def said_by_us(caplog) -> str:
    """The log without transformers' report on loading, which names weights too."""
    return "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("minimind_hf"))


def test_a_critic_from_another_model_gets_a_new_head(tmp_path, caplog):
    make_llama(seed=3).save_pretrained(tmp_path / "other")
    trainer = build(tmp_path / "run", critic_model_name_or_path=str(tmp_path / "other"))
    assert_names(said_by_us(caplog), tmp_path / "other", "score")
    for name, tensor in make_llama(seed=3).model.state_dict().items():
        assert torch.equal(trainer.model.critic.model.state_dict()[name], tensor), name
    trainer.train()


def test_a_critic_of_an_earlier_run_beside_the_new_policy_is_told(tmp_path, caplog):
    build(tmp_path, max_steps=2).save_model()
    assert "save_critic" not in caplog.text
    build(tmp_path, max_steps=2, save_critic=False).save_model()
    assert_names(caplog.text, tmp_path / "critic", "save_critic", False)


def test_a_critic_with_another_head_is_refused(tmp_path):
    config = make_policy().config
    config.num_labels = 2
    AutoModelForTokenClassification.from_config(config).save_pretrained(tmp_path / "other")
    with raises_naming(ValueError, tmp_path / "other", "score.weight", "[2, 32]", "[1, 32]"):
        build(tmp_path / "run", critic_model_name_or_path=str(tmp_path / "other"))


def test_a_reward_model_starts_the_critic_with_its_head(tmp_path, caplog):
    config = make_policy().config
    config.num_labels = 1
    reward_model = AutoModelForSequenceClassification.from_config(config)
    reward_model.save_pretrained(tmp_path / "reward")
    trainer = build(tmp_path / "run", critic_model_name_or_path=str(tmp_path / "reward"))
    assert_names(said_by_us(caplog), tmp_path / "reward", "bias")
    assert not names(said_by_us(caplog), "score")
    assert torch.equal(trainer.model.critic.score.weight, reward_model.score.weight)
    assert trainer.model.critic.score.bias == 0
    trainer.train()


def test_a_critic_with_a_shorter_context_is_refused(tmp_path):
    AutoModelForTokenClassification.from_config(make_policy(max_position_embeddings=8).config).save_pretrained(
        tmp_path / "short"
    )
    with raises_naming(ValueError, "max_completion_length", "critic", 9, 8):
        build(tmp_path / "run", critic_model_name_or_path=str(tmp_path / "short"))


@pytest.mark.parametrize("shared", [True, False])
def test_a_checkpoint_with_the_critic_elsewhere_is_refused(tmp_path, shared):
    build(tmp_path, peft_config=lora, share_critic_base=shared, save_steps=2, max_steps=2).train()
    other = build(tmp_path / "resumed", peft_config=lora, share_critic_base=not shared)
    with raises_naming(ValueError, tmp_path / "checkpoint-2" / "critic", f"share_critic_base={shared}"):
        other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_an_optimizer_without_the_critic_is_refused(tmp_path):
    policy = make_policy()
    trainer = build(tmp_path, model=lambda: policy)
    trainer.optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    with raises_naming(ValueError, "critic", "trainer.optimizer", "trainer.model.parameters()"):
        trainer.train()
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1)
    before = copied(trainer.model.critic)
    trainer.train()
    assert any(not torch.equal(before[name], tensor) for name, tensor in copied(trainer.model.critic).items())


def test_the_best_model_is_loaded_at_the_end(tmp_path):
    trainer = build(
        tmp_path,
        max_steps=4,
        save_steps=2,
        eval_strategy="steps",
        eval_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model="reward",
        greater_is_better=True,
        per_device_eval_batch_size=4,
        eval_dataset=make_prompts(4),
    )
    trainer.train()
    best = trainer.state.best_model_checkpoint
    assert_equal(copied(trainer.model.policy), copied(AutoModelForCausalLM.from_pretrained(best)))
    critic = AutoModelForTokenClassification.from_pretrained(f"{best}/critic")
    assert_equal(copied(trainer.model.critic), copied(critic))
