# SPDX-License-Identifier: Apache-2.0
"""What a server is sent computes what the trainer computes, and the trainer's weights stay as they are."""

import pytest
import torch
from naming import raises_naming
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from tiny import make_llama, make_policy
from transformers import AutoModelForCausalLM

from minimind_hf.rollout.exported_weights import exported_config, exported_weights, server_architectures, write_weights

EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


def with_peft(policy=make_policy, **config):
    torch.manual_seed(0)
    return get_peft_model(policy(), LoraConfig(r=2, **{"init_lora_weights": False} | config))


def two_adapters():
    model = with_peft(target_modules=["q_proj"])
    model.add_adapter("other", LoraConfig(r=3, target_modules=["v_proj"], init_lora_weights=False))
    return model


def untied():
    return make_policy(tie_word_embeddings=False)


MODELS = {
    "minimind": make_policy,
    "untied": untied,
    "moe": lambda: make_policy(use_moe=True),
    "yarn": lambda: make_policy(inference_rope_scaling=True),
    "llama": make_llama,
    "bfloat16": lambda: make_policy().to(torch.bfloat16),
    "lora": lambda: with_peft(target_modules="all-linear"),
    "dora": lambda: with_peft(target_modules=["q_proj", "down_proj"], use_dora=True),
    "embedding": lambda: with_peft(untied, target_modules=["embed_tokens", "q_proj"]),
    "trained head": lambda: with_peft(untied, target_modules=["q_proj"], modules_to_save=["lm_head"]),
    "experts": lambda: with_peft(
        lambda: make_policy(use_moe=True), target_modules=["q_proj"], target_parameters=EXPERTS
    ),
    "one of two adapters": two_adapters,
}


@pytest.mark.parametrize("name", MODELS)
def test_a_written_folder_computes_the_same_without_our_code(name, tmp_path):
    model = MODELS[name]().eval()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    write_weights(exported_weights(model), exported_config(model), tmp_path)
    served = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    assert type(served).__name__ in server_architectures(model)
    assert served.dtype == model.dtype
    assert not type(served).__module__.startswith("minimind_hf")
    ids = torch.randint(3, 259, (2, 9), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        close = {"atol": 1e-5, "rtol": 1e-5} if model.dtype == torch.float32 else {"atol": 0.1, "rtol": 0.05}
        torch.testing.assert_close(served(ids).logits, model(ids).logits, **close)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


def test_weights_without_adapters_are_not_copied():
    model = make_policy()
    exported = exported_weights(model)
    assert exported["model.embed_tokens.weight"].data_ptr() == model.model.embed_tokens.weight.data_ptr()


REFUSED = {
    "tied": (
        lambda: with_peft(target_modules=["embed_tokens"]),
        ["'lm_head.weight'", "'model.embed_tokens.weight'", "target_modules", "tie_word_embeddings=False"],
    ),
    "prompt": (
        lambda: get_peft_model(make_policy(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)),
        ["peft_type", "PROMPT_TUNING", "LoraConfig"],
    ),
    "tokens": (
        lambda: with_peft(untied, target_modules=["q_proj"], trainable_token_indices={"embed_tokens": [5, 6]}),
        ["'model.embed_tokens'", "TrainableTokensWrapper", "rollout_engine='torch'"],
    ),
}


@pytest.mark.parametrize(("make_model", "named"), REFUSED.values(), ids=REFUSED)
def test_what_a_folder_cannot_express_is_refused(make_model, named):
    with raises_naming(ValueError, *named):
        exported_weights(make_model())


def test_quantized_weights_are_refused():
    model = make_policy()
    layer = model.model.layers[0].self_attn.q_proj
    layer.weight = torch.nn.Parameter(torch.zeros(32, 32, dtype=torch.uint8), requires_grad=False)
    with raises_naming(
        ValueError, "'model.layers.0.self_attn.q_proj.weight'", "torch.uint8", "rollout_engine='torch'"
    ):
        exported_weights(model)
