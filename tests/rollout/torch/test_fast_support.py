# SPDX-License-Identifier: Apache-2.0
"""What the lean decoder must not be trusted with is named."""

import pytest
import torch
from naming import raises_naming
from peft import LNTuningConfig, LoraConfig, PromptTuningConfig, get_peft_model
from test_torch_engine import POLICIES, make, make_gpt2
from tiny import make_policy
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from minimind_hf.rollout.torch.fast_support import linear_weight, why_not_fast


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "gpt2"])
def test_supported(name):
    assert why_not_fast(POLICIES[name]()) is None


def with_peft(**config):
    return get_peft_model(make_policy(), LoraConfig(r=2, **config))


def with_hook():
    model = make_policy()
    model.model.layers[1].mlp.register_forward_hook(lambda *args: None)
    return model


def with_other_linear():
    class Scaled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model = make_policy()
    model.model.layers[0].mlp.up_proj = Scaled(32, 64, bias=False)
    return model


class OwnLlama(LlamaForCausalLM):
    pass


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
UNSUPPORTED = [
    (["GPT2LMHeadModel", "MiniMindForCausalLM"], make_gpt2),
    (["OwnLlama", "MiniMindForCausalLM"], lambda: make(OwnLlama, LlamaConfig)),
    (["activation", "'gelu'", "'silu'"], lambda: make_policy(hidden_act="gelu")),
    (
        ["sliding-window"],
        lambda: make(Qwen2ForCausalLM, Qwen2Config, use_sliding_window=True, sliding_window=4, max_window_layers=1),
    ),
    (["RoPE", "'dynamic'", "yarn"], lambda: make(LlamaForCausalLM, LlamaConfig, rope_parameters=DYNAMIC)),
    (["'model.layers.1.mlp'", "hooks"], with_hook),
    (["linear", "Scaled"], with_other_linear),
    (["linear", "peft.tuners.lora.layer.Linear"], lambda: with_peft(target_modules=["q_proj"], use_dora=True)),
    (
        ["linear", "ModulesToSaveWrapper"],
        lambda: with_peft(target_modules=["q_proj"], modules_to_save=["lm_head"]),
    ),
    (["embedding", "peft.tuners.lora.layer.Embedding"], lambda: with_peft(target_modules=["embed_tokens"])),
    (
        ["norms", "peft.tuners.ln_tuning.layer.LNTuningLayer"],
        lambda: get_peft_model(make_policy(), LNTuningConfig(target_modules=["input_layernorm"])),
    ),
    (
        ["adapter", "prompt"],
        lambda: get_peft_model(make_policy(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)),
    ),
]


@pytest.mark.parametrize(("named", "make_model"), UNSUPPORTED, ids=[" ".join(named) for named, _ in UNSUPPORTED])
def test_unsupported_is_named(named, make_model):
    with raises_naming(RuntimeError, *named):
        raise RuntimeError(why_not_fast(make_model()))


def test_lora_weight_is_base_and_active_adapters_together():
    model = with_peft(target_modules=["q_proj"], init_lora_weights=False)
    model.add_adapter("other", LoraConfig(r=3, target_modules=["q_proj"], init_lora_weights=False))
    layer = model.get_base_model().model.layers[0].self_attn.q_proj
    x = torch.randn(5, 32)
    for adapters in (["default"], ["other"], ["default", "other"]):
        model.base_model.set_adapter(adapters)
        torch.testing.assert_close(x @ linear_weight(layer).T, layer(x))
