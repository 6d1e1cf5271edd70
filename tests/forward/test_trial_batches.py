# SPDX-License-Identifier: Apache-2.0
"""Layouts are tried on contexts that reach every kernel, and by the spread of what is compared."""

import pytest
import torch
from test_layouts import batch_of, gradients
from tiny import make_llama, make_policy, random_ids
from transformers import (
    AutoModelForTokenClassification,
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
)

from minimind_hf.forward import shared_prompt
from minimind_hf.forward.layouts import choose_layout
from minimind_hf.forward.row_layout import Group
from minimind_hf.forward.trial_batches import probe_batches
from minimind_hf.forward.values import choose_values_layout, completion_values

SHAPE = {
    "vocab_size": 259,
    "hidden_size": 32,
    "intermediate_size": 64,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "max_position_embeddings": 1024,
}
NARROW = {
    "deepseek v2": lambda: DeepseekV2ForCausalLM(DeepseekV2Config(**SHAPE)),
    "deepseek v3": lambda: DeepseekV3ForCausalLM(DeepseekV3Config(**SHAPE)),
}


@pytest.mark.parametrize("length", [12, 400])
@pytest.mark.parametrize("name", NARROW)
def test_values_narrower_than_queries_at_every_length(name, length):
    torch.manual_seed(0)
    model = NARROW[name]().eval()
    prompts = random_ids(1, seed=5, low=length, high=length) + random_ids(1, seed=6)
    batch = batch_of(prompts, [0, 0, 1], random_ids(3, seed=7))
    plain, expected, mask = gradients(model, batch, "padded")
    layout, reason = choose_layout("shared_prompt", model, False)
    assert (layout, reason) == ("shared_prompt", None)
    found_scores, found, _ = gradients(model, batch, layout)
    torch.testing.assert_close(found_scores.logps[mask], plain.logps[mask], atol=1e-5, rtol=0)
    for parameter, gradient in expected.items():
        torch.testing.assert_close(found[parameter], gradient, atol=5e-5, rtol=1e-3)


def test_a_kernel_of_long_contexts_that_is_wrong_is_found_before_training(monkeypatch):
    right = shared_prompt._in_blocks
    monkeypatch.setattr(shared_prompt, "_in_blocks", lambda *states: 1.5 * right(*states))
    layout, reason = choose_layout("shared_prompt", make_llama(), False)
    assert layout == "padded" and "differ" in reason


def test_the_probe_stays_within_the_context_of_the_model():
    lengths = {make(): 1 for make in (lambda: make_policy(max_position_embeddings=64),)}
    for model, count in lengths.items():
        assert len(probe_batches(model)) == count
    assert len(probe_batches(make_policy())) == 2


def critic_of(policy, dtype):
    critic = AutoModelForTokenClassification.from_config(policy.config, dtype=dtype)
    critic.base_model.load_state_dict(policy.base_model.state_dict())
    torch.manual_seed(0)
    critic.score.weight.data.normal_().div_(33 * 20)  # values of a fresh head lie within a few hundredths
    return critic.eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_values_near_zero_are_compared_by_their_spread(dtype, monkeypatch):
    critic = critic_of(make_llama(), dtype)
    batch = probe_batches(critic)[0]
    assert completion_values(critic, batch, "padded").abs().max() < 0.1
    assert choose_values_layout("shared_prompt", critic, attaches=True) == "shared_prompt"
    # A completion that does not see its prompt: values change by less than 0.1.
    right = Group.masks

    def blind(group, window, device):
        prompt, completions = right(group, window, device)
        completions[:, : group.prompt_length] = False
        return prompt, completions

    monkeypatch.setattr(Group, "masks", blind)
    assert choose_values_layout("shared_prompt", critic_of(make_llama(), dtype), attaches=True) == "padded"
