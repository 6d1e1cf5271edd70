# SPDX-License-Identifier: Apache-2.0
"""Episodes with everything else that a run can have: adapters, parts, iterations, precisions, evaluations."""

import math

import pytest
import torch
from agent_runs import Counter, Game, SometimesRewarding, agent_policy, agent_trainer, make_rows
from peft import LoraConfig
from tiny import share_of_a

from minimind_hf import GRPOConfig, PPOConfig

LORA = {"peft_config": LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")}
MOE = {"use_moe": True, "num_experts_per_tok": 2}
OPTIONS = {
    "lora": (None, LORA),
    "parts": (None, {"max_tokens_per_microbatch": 150}),
    "masked": (None, {"mask_truncated_completions": True, "max_completion_length": 60}),
    "bf16": (None, {"bf16": True, "gradient_checkpointing": True}),
    "moe": (MOE, {}),
    "moe_router": (MOE, {"router_aux_loss_coef": 0.01}),
    "accumulated": (None, {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "mini_batch_size": 4}),
    "no_audit": (None, {"rollout_correction": "none"}),
}
ALGORITHMS = {
    "grpo": (GRPOConfig, {"beta": 0.1}),
    "grpo_iterations": (GRPOConfig, {"num_iterations": 2, "loss_aggregation": "sequence"}),
    "ppo": (PPOConfig, {"kl_coef": 0.1, "ppo_update_iters": 2}),
}


def settings_of(config_class, own) -> dict:
    fields = config_class.__dataclass_fields__
    return {name: value for name, value in own.items() if name in fields or name == "peft_config"}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("option", OPTIONS)
def test_episodes_are_trained_on_with(tmp_path, option, algorithm):
    config_class, own = ALGORITHMS[algorithm]
    shape, changes = OPTIONS[option]
    model = agent_policy(**shape) if shape else None
    changes = {"learning_rate": 0.05, **own, **settings_of(config_class, changes)}
    trainer = agent_trainer(tmp_path, config_class, model, environment_factory=Game, **changes)
    before = {name: each.detach().clone() for name, each in trainer.policy.named_parameters() if each.requires_grad}
    trainer.train()
    assert trainer.state.global_step == 2
    records = [record for record in trainer.state.log_history if "loss" in record]
    assert records[0]["ratio_mean"] == pytest.approx(1.0, abs=0.05 if option == "bf16" else 1e-5)
    assert records[0]["episodes/turns"] > 1
    assert all(math.isfinite(record["loss"]) and math.isfinite(record["grad_norm"]) for record in records)
    assert any(
        not torch.equal(each, before[name]) for name, each in trainer.policy.named_parameters() if name in before
    )
    if option == "masked":
        assert 0 < records[0]["completions/clipped_ratio"] < 1


# The same episodes, computed otherwise: the same parameters

SPLITS = {
    "parts": {"max_tokens_per_microbatch": 300},
    "padded": {"forward_layout": "padded"},
    "accumulated": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "mini_batch_size": 4},
}
EXACT = {
    "max_steps": 1,
    "learning_rate": 0.05,
    "max_grad_norm": 0.1,
    "max_completion_length": 100,
    "mini_batch_size": 8,
    "forward_layout": "shared_prompt",
}


def trained(folder, config_class, environment, **changes):
    model = agent_policy(ends=None).double()
    changes = settings_of(config_class, EXACT | changes)
    trainer = agent_trainer(
        folder, config_class, model, share_of_a, engine="scripted", environment_factory=environment, **changes
    )
    trainer.train()
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize("config_class", [GRPOConfig, PPOConfig])
@pytest.mark.parametrize("environment", [Counter, Game, SometimesRewarding])
def test_splits_change_nothing(tmp_path, config_class, environment):
    whole = trained(tmp_path / "whole", config_class, environment)
    record = whole.state.log_history[0]
    assert record["ratio_mean"] == pytest.approx(1.0, abs=1e-5) and record["episodes/turns"] > 1
    assert environment is not Counter or record["tools/call_frequency"] > 0.1
    for name, changes in SPLITS.items():
        other = trained(tmp_path / name, config_class, environment, **changes)
        for key, tensor in whole.model.state_dict().items():
            torch.testing.assert_close(other.model.state_dict()[key], tensor, atol=1e-7, rtol=0, msg=f"{name} {key}")
        assert other.state.log_history[0]["reward"] == record["reward"]


def test_evaluation_sets_by_name_and_predict_play_episodes(tmp_path):
    sets = {"few": make_rows(3), "more": make_rows(5)}
    trainer = agent_trainer(
        tmp_path,
        environment_factory=Counter,
        rewards=share_of_a,
        engine="scripted",
        eval_dataset=sets,
        eval_strategy="steps",
        eval_steps=1,
        max_steps=1,
        per_device_eval_batch_size=8,
    )
    trainer.train()
    for name in sets:
        (record,) = [each for each in trainer.state.log_history if f"eval_{name}_reward" in each]
        assert record[f"eval_{name}_episodes/turns"] > 1 and math.isfinite(record[f"eval_{name}_loss"])
    again = trainer.predict(make_rows(3)).metrics
    assert again["test_reward"] == pytest.approx(trainer.evaluate("few")["eval_reward"])
