# SPDX-License-Identifier: Apache-2.0
"""MiniMindConfig: MiniMind's facts, both dialects of its keys, and what it refuses."""

import json

import pytest
from naming import raises_naming
from transformers import AutoConfig

from minimind_hf.models import MiniMindConfig

YARN = {
    "rope_type": "yarn",
    "factor": 16.0,
    "original_max_position_embeddings": 2048,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "attention_factor": 1.0,
    "rope_theta": 1e6,
}

# config.json as MiniMind's own conversion script leaves it
MINIMIND_CONFIG = {
    "architectures": ["MiniMindForCausalLM"],
    "auto_map": {
        "AutoConfig": "model_minimind.MiniMindConfig",
        "AutoModelForCausalLM": "model_minimind.MiniMindForCausalLM",
    },
    "bos_token_id": 1,
    "dropout": 0.0,
    "eos_token_id": 2,
    "flash_attn": True,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 64,
    "inference_rope_scaling": True,
    "intermediate_size": 256,
    "max_position_embeddings": 32768,
    "model_type": "minimind",
    "moe_intermediate_size": 256,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "attention_factor": 1.0,
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 16,
        "original_max_position_embeddings": 2048,
        "type": "yarn",
    },
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.0005,
    "torch_dtype": "float16",
    "transformers_version": "4.57.1",
    "use_moe": True,
    "vocab_size": 320,
}


def test_defaults_are_minimind():
    config = MiniMindConfig()
    facts = (config.vocab_size, config.hidden_size, config.num_hidden_layers, config.num_attention_heads)
    assert facts == (6400, 768, 8, 8)
    assert (config.num_key_value_heads, config.head_dim) == (4, 96)
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (0, 1, 2)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 1e6}
    assert config.tie_word_embeddings and not config.use_moe
    assert (config.num_experts, config.num_experts_per_tok, config.norm_topk_prob) == (4, 1, True)
    assert MiniMindConfig(use_moe=True).router_aux_loss_coef == 5e-4


def test_a_dense_config_does_not_look_like_a_mixture_of_experts(tmp_path):
    for config in (MiniMindConfig(), MiniMindConfig(**MINIMIND_CONFIG | {"use_moe": False})):
        assert not hasattr(config, "output_router_logits") and not hasattr(config, "router_aux_loss_coef")
        config.save_pretrained(tmp_path)
        assert not hasattr(MiniMindConfig.from_pretrained(tmp_path), "output_router_logits")
    assert MiniMindConfig(use_moe=True).output_router_logits is None
    assert MiniMindConfig(use_moe=True, output_router_logits=False).output_router_logits is False


# 768 * pi / 64 = 37.70 -> 38; 512: 25.13 -> 26; 256: 12.57 -> 13; 64: 3.14 -> 4
@pytest.mark.parametrize("hidden, expected", [(768, 2432), (512, 1664), (256, 832), (64, 256)])
def test_intermediate_size_follows_pi(hidden, expected):
    config = MiniMindConfig(hidden_size=hidden)
    assert config.intermediate_size == config.moe_intermediate_size == expected


def test_reads_the_config_of_minimind_s_own_script(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MINIMIND_CONFIG))
    config = AutoConfig.from_pretrained(tmp_path)
    assert type(config) is MiniMindConfig
    assert config.use_moe and config.num_experts_per_tok == 2
    assert config.rope_parameters == YARN
    assert config.inference_rope_scaling


def test_switch_alone_means_yarn_x16():
    config = MiniMindConfig(inference_rope_scaling=True)
    assert config.rope_parameters == YARN
    config.inference_rope_scaling = False
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 1e6}
    config.inference_rope_scaling = True
    assert config.rope_parameters == YARN


def test_switch_can_be_given_when_loading(tmp_path):
    MiniMindConfig(rope_theta=5e5).save_pretrained(tmp_path)
    config = MiniMindConfig.from_pretrained(tmp_path, inference_rope_scaling=True)
    assert config.rope_parameters == {**YARN, "rope_theta": 5e5}


def test_yarn_needs_more_positions_than_pretraining():
    config = MiniMindConfig(inference_rope_scaling=True, max_position_embeddings=2048)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 1e6}


def test_round_trip_keeps_every_value(tmp_path):
    config = MiniMindConfig(use_moe=True, num_experts_per_tok=2, inference_rope_scaling=True, rope_theta=1e5)
    config.save_pretrained(tmp_path)
    loaded = MiniMindConfig.from_pretrained(tmp_path)
    assert loaded.to_dict() == config.to_dict()
    assert loaded.rope_parameters["rope_theta"] == 1e5
    assert "num_experts" in json.loads((tmp_path / "config.json").read_text())


def test_dropout_is_minimind_s_key_for_attention_dropout():
    assert MiniMindConfig(dropout=0.1).attention_dropout == 0.1


@pytest.mark.parametrize(
    "values, named",
    [
        ({"hidden_size": 0}, ["hidden_size", 0]),
        ({"num_hidden_layers": "8"}, ["num_hidden_layers", "'8'"]),
        ({"hidden_size": 100}, ["hidden_size", 100, "num_attention_heads", 8, "head_dim"]),
        ({"num_key_value_heads": 3}, ["num_attention_heads", 8, "num_key_value_heads", 3]),
        ({"head_dim": 15}, ["head_dim", 15]),
        ({"hidden_act": "sliu"}, ["hidden_act", "'sliu'", "'silu'"]),
        ({"rms_norm_eps": 0}, ["rms_norm_eps", 0]),
        ({"dropout": 1.5}, ["dropout", 1.5]),
        ({"rope_theta": -1}, ["rope_theta", -1]),
        ({"use_moe": True, "num_experts": 0}, ["num_experts", 0]),
        ({"use_moe": True, "num_experts_per_tok": 5}, ["num_experts_per_tok", 5, "num_experts", 4]),
        ({"use_moe": True, "router_aux_loss_coef": -1.0}, ["router_aux_loss_coef", -1.0]),
        (
            {"inference_rope_scaling": False, "rope_parameters": YARN},
            ["inference_rope_scaling", False, "rope_parameters"],
        ),
        ({"n_routed_experts": 4, "n_shared_experts": 1}, ["n_routed_experts", "n_shared_experts", "num_experts"]),
    ],
)
def test_refuses_with_the_value_named(values, named):
    with raises_naming(ValueError, *named):
        MiniMindConfig(**values)
