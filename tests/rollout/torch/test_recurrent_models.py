# SPDX-License-Identifier: Apache-2.0
"""Models with recurrences: the engine samples from what a teacher-forced pass computes, and they train."""

import pytest
import torch
import transformers
from naming import raises_naming
from tiny import make_llama, make_tokenizer, random_ids, share_of_a
from transformers import AutoModelForCausalLM

from minimind_hf import GRPOConfig, GRPOTrainer
from minimind_hf.forward.logprobs import completion_scores
from minimind_hf.rollout import SamplingParams, TorchEngine

IDS = {"vocab_size": 259, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
LINEAR_THEN_FULL = ["linear_attention", "full_attention"]
MODELS = {
    "Mamba": {"state_size": 8},
    "Mamba2": {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8},
    "FalconH1": {**ATTENTION, "mamba_d_ssm": 64, **MAMBA2},
    "Lfm2": {**ATTENTION, "layer_types": ["conv", "full_attention"]},
    "Qwen3Next": {
        **ATTENTION,
        "head_dim": 8,
        "layer_types": LINEAR_THEN_FULL,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
    "Jamba": {
        **ATTENTION,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": 2,
        "mamba_d_state": 8,
        "mamba_dt_rank": 8,
    },
    "Bamba": {**ATTENTION, "attn_layer_indices": [1], **MAMBA2},
    "RecurrentGemma": {**ATTENTION, "num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 64},
    "MiniMax": {
        **ATTENTION,
        "head_dim": 8,
        "layer_types": LINEAR_THEN_FULL,
        "block_size": 8,
        "num_local_experts": 2,
    },
}
LAST_LAYERS = {  # the same with the recurrence behind the attention
    "MiniMax, linear last": ("MiniMax", {"layer_types": LINEAR_THEN_FULL[::-1]}),
    "Lfm2, conv last": ("Lfm2", {"layer_types": ["full_attention", "conv"]}),
}


def make(name: str):
    name, changes = LAST_LAYERS.get(name, (name, {}))
    config = getattr(transformers, f"{name}Config")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        config(**{**IDS, "hidden_size": 32, "num_hidden_layers": 2, **MODELS[name], **changes})
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(2.0)
    return model.eval()


@torch.no_grad()
def largest_difference(model, prompts, rollouts, group_size: int) -> float:
    """Between the engine's log-probabilities and those of one pass over each sequence alone."""
    found = []
    for number, rollout in enumerate(rollouts):
        prompt, completion = torch.tensor([prompts[number // group_size]]), torch.tensor([rollout.completion_ids])
        masks = torch.ones_like(prompt), torch.ones_like(completion)
        scores = completion_scores(model, prompt, masks[0], completion, masks[1], 0.9)
        found.append((scores.logps[0] - torch.tensor(rollout.logprobs)).abs().max().item())
    return max(found)


@pytest.mark.parametrize("max_batch_rows", [256, 6])
@pytest.mark.parametrize("name", [*MODELS, *LAST_LAYERS])
def test_log_probabilities_of_the_engine_are_those_of_a_teacher_forced_pass(name, max_batch_rows):
    model = make(name)
    prompts = random_ids(4, seed=1) + random_ids(2, seed=2, low=7, high=7) + [[33]]
    engine = TorchEngine(max_batch_rows=max_batch_rows)
    for seed in (0, 1):  # states of the rollout before are forgotten
        engine.sync_weights(model, seed)
        rollouts = engine.generate(prompts, 3, SamplingParams(9, 0.9, tuple(range(2, 259, 9)), seed))
        assert len({len(rollout.completion_ids) for rollout in rollouts}) > 1  # rows have left the batch early
        assert largest_difference(model, prompts, rollouts, 3) < 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_they_train(name, tmp_path):
    args = GRPOConfig(
        output_dir=str(tmp_path),
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        max_steps=2,
        learning_rate=1e-3,
        logging_steps=1,
        num_generations=4,
        per_device_train_batch_size=8,
        max_completion_length=8,
        beta=0.1,
    )
    prompts = [{"prompt": text} for text in ("a", "bcd", "efgh", "a b c d e")]
    trainer = GRPOTrainer(make(name), share_of_a, args, train_dataset=prompts, processing_class=make_tokenizer())
    before = {key: tensor.clone() for key, tensor in trainer.policy.state_dict().items()}
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(logs) == 2
    assert all(entry["sampling/sampling_logp_difference/max"] < 1e-3 for entry in logs)
    assert any(not torch.equal(tensor, before[key]) for key, tensor in trainer.policy.state_dict().items())


def test_a_model_that_cannot_be_decoded_with_is_refused_at_construction(make_trainer):
    class Broken(type(make_llama())):
        def forward(self, input_ids, cache=None, **kwargs):
            if cache is not None and cache.get_seq_length() > 0:
                raise RuntimeError("sizes do not fit")
            return super().forward(input_ids, cache=cache, **kwargs)

    model = make_llama()
    model.__class__ = Broken
    with raises_naming(ValueError, "Broken", "RuntimeError: sizes do not fit", "rollout_engine"):
        make_trainer(model, scripted=False)
