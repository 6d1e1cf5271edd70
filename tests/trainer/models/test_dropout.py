# SPDX-License-Identifier: Apache-2.0
"""A model with dropout is sampled from without it and trained with it: said at the start, with the remedy."""

import logging

import pytest
import torch
from naming import raises_naming
from peft import LoraConfig
from ppo_tools import make_trainer as make_ppo_trainer
from tiny import make_llama, make_policy
from transformers import (
    BigBirdConfig,
    BigBirdForCausalLM,
    DogeConfig,
    DogeForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    PhimoeConfig,
    PhimoeForCausalLM,
)

from minimind_hf.trainer.models.dropout import disable_dropout, dropouts
from minimind_hf.trainer.models.policy import router_loss_coefficient


def make_gpt2():
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=259, n_embd=32, n_layer=1, n_head=2, n_positions=64))


def attention_dropout():
    model = make_llama()
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.2
    return model


def make_phimoe():
    """Its router draws among experts that are nearly equal, while it trains."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 259, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 4, "router_jitter_noise": 0.5}
    return PhimoeForCausalLM(PhimoeConfig(**sizes, **heads, max_position_embeddings=64))


MODELS = {"gpt2": (make_gpt2, 0.1), "attention": (attention_dropout, 0.2), "router": (make_phimoe, 0.5)}


@pytest.mark.parametrize("name", MODELS)
def test_dropout_is_said_once_at_the_start_with_its_remedy(make_trainer, caplog, name):
    make, rate = MODELS[name]
    with caplog.at_level(logging.WARNING):
        make_trainer(make(), scripted=False)
    (said,) = [record.getMessage() for record in caplog.records if "disable_dropout=True" in record.getMessage()]
    assert f"the highest rate is {rate}" in said
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        trainer = make_trainer(make(), scripted=False, disable_dropout=True)
    assert not [record for record in caplog.records if "disable_dropout" in record.getMessage()]
    assert not dropouts(trainer.policy)


@pytest.mark.parametrize("name", MODELS)
def test_without_dropout_the_first_update_scores_what_was_sampled(make_trainer, name):
    def k3(**changes) -> float:
        trainer = make_trainer(MODELS[name][0](), scripted=False, max_steps=1, logging_steps=1, **changes)
        trainer.train()
        return next(entry["sampling/k3"] for entry in trainer.state.log_history if "sampling/k3" in entry)

    assert k3(disable_dropout=True) < 1e-9 < k3()


def test_dropout_of_adapters_is_said(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        make_ppo_trainer(
            tmp_path, make_policy(), peft_config=LoraConfig(r=2, target_modules=["q_proj"], lora_dropout=0.05)
        )
    assert any("disable_dropout=True" in r.getMessage() and "0.05" in r.getMessage() for r in caplog.records)


def test_a_model_without_dropout_is_left_in_peace(make_trainer, caplog):
    with caplog.at_level(logging.WARNING):
        make_trainer(make_policy())
    assert not [record for record in caplog.records if "dropout" in record.getMessage()]


def test_block_sparse_attention_is_exchanged_before_dropout_is_disabled(make_trainer):
    torch.manual_seed(0)
    sizes = {"vocab_size": 259, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    config = BigBirdConfig(**sizes, num_attention_heads=2, max_position_embeddings=64, is_decoder=True)
    trainer = make_trainer(BigBirdForCausalLM(config), scripted=False, max_steps=1, disable_dropout=True)
    assert trainer.policy.bert.attention_type == "original_full"
    trainer.train()
    assert not dropouts(trainer.policy)
    assert next(log["sampling/k3"] for log in trainer.state.log_history if "sampling/k3" in log) < 1e-9


def test_a_router_without_noise_weighs_experts_as_in_evaluation():
    model, expected = make_phimoe(), make_phimoe().eval()
    disable_dropout(model)
    model.train()
    ids = torch.arange(3, 40)[None]
    assert torch.equal(model(input_ids=ids).logits, expected(input_ids=ids).logits)
    assert all(each.training != hasattr(each, "router_jitter_noise") for each in model.modules())


def test_dropout_is_disabled_wherever_it_is():
    model = attention_dropout()
    assert dropouts(model)
    disable_dropout(model)
    assert not dropouts(model)


def make_doge(**config):
    torch.manual_seed(0)
    shape = {"vocab_size": 259, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1}
    return DogeForCausalLM(DogeConfig(**shape, **heads, eos_token_id=2, **config))


def test_a_dense_model_that_takes_router_logits_has_no_router_loss(make_trainer, make_config):
    model = make_doge(is_moe=False)
    assert router_loss_coefficient(model, make_config()) == 0
    trainer = make_trainer(model, scripted=False, max_steps=1)
    trainer.train()
    assert trainer.router_loss_coefficient == 0
    with raises_naming(ValueError, "router_aux_loss_coef", 0.1):
        router_loss_coefficient(make_doge(is_moe=False), make_config(router_aux_loss_coef=0.1))
