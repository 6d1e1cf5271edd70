# SPDX-License-Identifier: Apache-2.0
"""Attributes that scripts read on trl's GRPOTrainer are on ours, with trl's meaning."""

import ast
import inspect

import pytest
import torch
import trl
from naming import raises_naming
from peft import LoraConfig
from tiny import make_policy, make_prompts, make_tokenizer, share_of_a
from transformers import LlamaConfig, LlamaForSequenceClassification

from minimind_hf import GRPOTrainer
from minimind_hf.trainer.trl_attributes import TrlAttributes

# Set in the constructor of trl's trainer, and of no meaning without what it has and we refuse
OF_ENGINES_AND_TOOLS = {
    "commit_scheduler", "log_completions_hub_repo", "log_multimodal", "async_loop",
    "async_loop_ready_event", "async_loop_thread", "chat_template", "continuous_batching_config",
    "environments", "generation_config", "vllm_generation",
    "liger_loss", "model_accepts_loss_kwargs", "use_liger_kernel",
}  # fmt: skip


def attributes_of_trl() -> set[str]:
    source = inspect.getsource(trl.GRPOTrainer)
    tree = ast.parse(source)
    init = next(each for each in tree.body[0].body if getattr(each, "name", "") == "__init__")
    stores = [each for each in ast.walk(init) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)]
    names = {each.attr for each in stores if getattr(each.value, "id", "") == "self"}
    public = {name for name in names if not name.startswith(("_", "vllm_"))}
    return public - OF_ENGINES_AND_TOOLS


def test_every_public_attribute_of_trl_is_there(make_trainer):
    trainer = make_trainer()
    assert {"ref_model", "reward_funcs", "num_generations", "beta", "epsilon_low"} < attributes_of_trl()
    assert [name for name in sorted(attributes_of_trl()) if not hasattr(trainer, name)] == []


def test_values_of_settings(make_trainer):
    trainer = make_trainer(beta=0.2, loss_type="grpo", epsilon=0.1, epsilon_high=0.3, num_iterations=2)
    args = trainer.args
    for name in ("beta", "temperature", "num_generations", "max_completion_length", "num_iterations", "loss_type"):
        assert getattr(trainer, name) == getattr(args, name)
    assert (trainer.epsilon_low, trainer.epsilon_high, trainer.scale_rewards) == (0.1, 0.3, "group")
    assert trainer.num_generations_eval == trainer.num_generations
    assert trainer.chat_template_kwargs == {} and trainer.eos_token_ids == list(trainer._rollouts.eos_token_ids)
    assert (trainer.aux_loss_enabled, trainer.router_aux_loss_coef, trainer.entropy_coef) == (False, 0, 0.0)


def test_epsilon_high_has_its_default_filled_in(make_trainer):
    assert make_trainer().epsilon_high == 5.0
    assert make_trainer(loss_type="grpo", epsilon=0.3).epsilon_high == 0.3


@pytest.mark.parametrize("name", ["beta", "ref_model", "reward_funcs", "temperature"])
def test_they_are_read_only(make_trainer, name):
    trainer = make_trainer()
    before = getattr(trainer, name)
    with pytest.raises(AttributeError):  # its message is Python's, and another one in each version
        setattr(trainer, name, 0)
    assert getattr(trainer, name) is before or getattr(trainer, name) == before


def test_every_one_is_documented():
    names = [name for name in vars(TrlAttributes) if not name.startswith("_")]
    assert len(names) > 30 and all(getattr(TrlAttributes, name).__doc__ for name in names)


def test_rewards(make_config, tmp_path):
    tokenizer = make_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_labels=1, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    judge = LlamaForSequenceClassification(config)
    trainer = GRPOTrainer(
        make_policy(), [share_of_a, judge], make_config(reward_weights=[1.0, 0.5]), make_prompts(8),
        processing_class=tokenizer, reward_processing_classes=[None, tokenizer],
    )  # fmt: skip
    assert trainer.reward_funcs == [share_of_a, judge]
    assert trainer.reward_processing_classes == [None, tokenizer]
    assert trainer.reward_func_names[0] == "share_of_a" and len(trainer.reward_func_names) == 2
    assert trainer.reward_weights.tolist() == [1.0, 0.5]


@pytest.mark.parametrize("count", [1, 3])
def test_as_many_processing_classes_as_rewards(make_config, count):
    with raises_naming(ValueError, "reward_processing_classes", count, 2):
        GRPOTrainer(
            make_policy(), [share_of_a, "length"], make_config(), make_prompts(8), processing_class=make_tokenizer(),
            reward_processing_classes=[None] * count,
        )  # fmt: skip


def test_the_reference(make_trainer, make_config):
    trainer = make_trainer(beta=0.1)
    assert trainer.ref_model is trainer.reference.model and trainer.ref_model is not trainer.model
    assert torch.equal(next(trainer.ref_model.parameters()), next(trainer.model.parameters()))
    assert make_trainer(beta=0.0).ref_model is None
    with_adapters = GRPOTrainer(
        make_policy(), share_of_a, make_config(beta=0.1), make_prompts(8), processing_class=make_tokenizer(),
        peft_config=LoraConfig(target_modules=["q_proj"]),
    )  # fmt: skip
    assert with_adapters.ref_model is None  # adapters off is the reference, as in trl


def test_the_last_record_holds_what_was_measured_last(make_trainer):
    trainer = make_trainer(max_steps=2)
    trainer.train()
    *_, last, summary = trainer.state.log_history
    assert "train_loss" in summary and "loss" in last and not {"loss", "grad_norm", "learning_rate"} & summary.keys()
    for name in ("reward", "rewards/share_of_a/mean", "entropy", "policy_loss", "kl_ref"):
        assert summary[name] == last[name]


def test_a_trainer_without_rewards_is_refused(make_config):
    with raises_naming(ValueError, "reward_funcs", "environment_factory"):
        GRPOTrainer(make_policy(), args=make_config(), train_dataset=make_prompts(8))


def test_the_off_policy_mask_is_that_of_trl():
    generator = torch.Generator().manual_seed(0)
    advantages = torch.randn(8, 1, generator=generator)
    logps, sampled = torch.randn(2, 8, 5, generator=generator)
    mask = torch.arange(5) < torch.randint(1, 6, (8, 1), generator=generator)
    arguments = (advantages, logps, sampled, mask.long(), 0.2)
    ours, theirs = (trainer.get_off_policy_mask(*arguments) for trainer in (GRPOTrainer, trl.GRPOTrainer))
    assert torch.equal(ours, theirs.to(ours.dtype)) and 0 < ours.sum() < 8
