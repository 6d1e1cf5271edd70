# SPDX-License-Identifier: Apache-2.0
"""Adapters on a base in 4 or 8 bits (bitsandbytes): the paths that compute it, rollout and update, refusals."""

import importlib.util

import pytest
import torch
from naming import assert_names, raises_naming
from peft import LoraConfig
from tiny import (
    GRPO,
    PPO,
    SHAPE,
    make_policy,
    make_prompts,
    make_tokenizer,
    random_ids,
    share_of_a,
    tiny_trainer,
    without_ties,
)
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

from minimind_hf import GRPOConfig, GRPOTrainer, PPOConfig, SamplingParams, TorchEngine
from minimind_hf.forward.introspection import quantisation
from minimind_hf.forward.layouts import score_completions
from minimind_hf.forward.token_batch import TokenBatch
from minimind_hf.rollout.torch.fast_support import why_not_fast

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed (pip install '.[quant]')"
)
LORA = {"r": 4, "target_modules": ["q_proj", "v_proj", "down_proj"], "init_lora_weights": True}
FOUR_BITS = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
KINDS = {
    "nf4": FOUR_BITS,
    "nf4 in bfloat16": FOUR_BITS | {"bnb_4bit_compute_dtype": "bfloat16"},
    "8 bits": {"load_in_8bit": True},
}


def make_wide_llama():
    """Blocks of 64 numbers have a scale of their own, and no matrix may be narrower."""
    torch.manual_seed(0)
    sizes = SHAPE | {"hidden_size": 64, "intermediate_size": 128}
    return LlamaForCausalLM(LlamaConfig(**sizes))


@pytest.fixture(params=["llama", "minimind"])
def folder(request, tmp_path):
    make = {"llama": make_wide_llama, "minimind": lambda: make_policy(hidden_size=64)}[request.param]
    make().save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def trainer_of(folder, tmp_path, kind, config=GRPOConfig, **settings):
    args = config(output_dir=str(tmp_path / "run"), **(PPO if config is PPOConfig else GRPO) | settings)
    return tiny_trainer(
        args,
        AutoModelForCausalLM.from_pretrained(folder, quantization_config=BitsAndBytesConfig(**KINDS[kind])),
        without_ties,
        engine=None,
        peft_config=LoraConfig(**LORA),
    )


def ragged_batch() -> TokenBatch:
    prompts, groups = random_ids(3, seed=1), [0, 0, 0, 1, 2, 2]
    return TokenBatch(
        prompt_ids=[prompts[group] for group in groups],
        completion_ids=random_ids(6, seed=2),
        group_ids=groups,
        device=torch.device("cpu"),
    )


def quantised_weights(model) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if not p.is_floating_point()}


@pytest.mark.parametrize("config", [GRPOConfig, PPOConfig])
@pytest.mark.parametrize("kind", KINDS)
def test_rollout_and_update(kind, config, folder, tmp_path):
    trainer = trainer_of(folder, tmp_path, kind, config)
    before = quantised_weights(trainer.policy)
    assert len(before) >= 2 * 7
    trainer.train()
    trained = {name: p for name, p in trainer.policy.named_parameters() if "lora_B.default" in name}
    assert trained and all(parameter.abs().max() > 0 for parameter in trained.values())
    after = quantised_weights(trainer.policy)
    assert all(torch.equal(after[name], weights) for name, weights in before.items())
    (step, *_) = [log for log in trainer.state.log_history if "loss" in log]
    # Sampled and scored by the same layers in the same precision.
    limit = 2e-4 if kind == "nf4" else 0.3
    assert step["sampling/sampling_logp_difference/max"] < limit
    assert step["kl_ref"] == pytest.approx(0.0, abs=limit)


@pytest.mark.parametrize("kind", KINDS)
def test_fast_paths_refuse_it_by_name_and_plain_ones_take_it(kind, folder, tmp_path):
    trainer = trainer_of(folder, tmp_path, kind)
    bits = 8 if kind == "8 bits" else 4
    assert_names(why_not_fast(trainer.policy), "quantised", "bitsandbytes", f"{bits} bits")
    assert quantisation(trainer.policy) == f"bitsandbytes in {bits} bits"
    with raises_naming(ValueError, "path='fast'", "quantised"):
        engine = TorchEngine(path="fast")
        engine.sync_weights(trainer.policy, 0)
        engine.generate([[5, 6]], 1, SamplingParams(2, 1.0, (2,)))
    quantised = [module for module in trainer.policy.modules() if type(module).__module__.startswith("bitsandbytes")]
    assert quantised and not any("forward" in vars(module) for module in quantised)  # oneDNN is not for them
    assert trainer.layout == "shared_prompt"


@pytest.mark.parametrize("kind", KINDS)
def test_shared_prompt_equals_padded(kind, folder, tmp_path):
    trainer = trainer_of(folder, tmp_path, kind)
    model, batch = trainer.policy.eval(), ragged_batch()
    mask = batch.padded()[3].bool()
    with torch.no_grad():
        shared, plain = (
            score_completions(model, batch, 1.0, layout).logps[mask] for layout in ("shared_prompt", "padded")
        )
    torch.testing.assert_close(shared, plain, atol=1e-4 if kind == "nf4" else 0.2, rtol=0)


def test_a_checkpoint_resumes_on_the_same_base(folder, tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 1, "max_steps": 3}
    whole = trainer_of(folder, tmp_path, "nf4", **settings)
    whole.train()
    resumed = trainer_of(folder, tmp_path, "nf4", **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    for name, parameter in whole.policy.named_parameters():
        if parameter.requires_grad:
            assert torch.equal(dict(resumed.policy.named_parameters())[name], parameter), name


def test_a_model_named_by_its_folder_is_loaded_with_trls_argument(folder, tmp_path):
    trainer = GRPOTrainer(
        folder,
        share_of_a,
        GRPOConfig(output_dir=str(tmp_path / "run"), **GRPO),
        train_dataset=make_prompts(8),
        processing_class=make_tokenizer(),
        quantization_config=BitsAndBytesConfig(**FOUR_BITS),
        peft_config=LoraConfig(**LORA),
    )
    trainer.train()
    assert quantisation(trainer.policy) == "bitsandbytes in 4 bits"
    assert (tmp_path / "run").exists()


REFUSED = {
    "no adapters": ({}, None, ["quantised", "cannot be trained", "peft_config"]),
    "merged": ({"merge_adapters": True}, LORA, ["quantised", "merge_adapters", "merge_and_unload"]),
    "server": (
        {"rollout_engine": "sglang", "sglang_base_url": ["http://localhost:1"]},
        LORA,
        ["quantised", "server", "rollout_engine='torch'"],
    ),
}


@pytest.mark.parametrize(("settings", "adapters", "named"), REFUSED.values(), ids=REFUSED)
def test_what_needs_the_weights_is_refused(settings, adapters, named, folder, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=BitsAndBytesConfig(**FOUR_BITS))
    with raises_naming(ValueError, *named):
        tiny_trainer(
            GRPOConfig(output_dir=str(tmp_path), **GRPO | settings),
            model,
            engine=None,
            peft_config=adapters and LoraConfig(**adapters),
        )


def test_a_model_that_was_packed_for_inference_is_refused(folder, tmp_path):
    """By bitsandbytes itself, where the CPU has bfloat16 instructions; no gradient would pass it."""
    model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=BitsAndBytesConfig(**FOUR_BITS)).eval()
    with torch.no_grad():
        model(torch.tensor([[5, 6, 7]]))
    layer = model.model.layers[0].self_attn.q_proj
    if not getattr(layer.weight.quant_state, "packing_format_for_cpu", False):
        pytest.skip("this CPU has no format of its own")
    with raises_naming(ValueError, "4-bit", "packed", "Load the model again"):
        tiny_trainer(GRPOConfig(output_dir=str(tmp_path), **GRPO), model, engine=None, peft_config=LoraConfig(**LORA))
