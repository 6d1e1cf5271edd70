# SPDX-License-Identifier: Apache-2.0
"""The shared-prompt layout against the padded one: values, gradients, and which models may use it."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny import make_llama, make_policy, random_ids
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from minimind_hf.forward import block_attention, scoring_head
from minimind_hf.forward.layouts import choose_layout, score_completions
from minimind_hf.forward.lean import use_lean_norms, use_onednn
from minimind_hf.forward.shared_prompt import pack
from minimind_hf.forward.token_batch import TokenBatch

SHAPE = {
    "vocab_size": 259,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


def seeded(make):
    torch.manual_seed(0)
    return make().eval()


def with_lora(model):
    model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj", "lm_head"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    return model


def checkpointed(model):
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def half_frozen(model):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layers.1" in name)
    return model


MODELS = {
    "minimind": make_policy,
    "moe": lambda: make_policy(use_moe=True, num_experts_per_tok=2),
    "yarn": lambda: make_policy(inference_rope_scaling=True),
    "llama": make_llama,
    "qwen3": lambda: seeded(lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE))),
    "qwen2 (biases)": lambda: seeded(lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE))),
    "gemma": lambda: seeded(lambda: GemmaForCausalLM(GemmaConfig(**SHAPE))),
    "lora": lambda: with_lora(make_policy()),
    "checkpointed": lambda: checkpointed(make_policy()),
    "half frozen": lambda: half_frozen(make_policy()),
}


def batch_of(prompts, groups, completions, device="cpu") -> TokenBatch:
    """`groups[i]` is the prompt of completion i."""
    return TokenBatch(
        prompt_ids=[prompts[group] for group in groups],
        completion_ids=completions,
        group_ids=groups,
        device=torch.device(device),
    )


def ragged_batch() -> TokenBatch:
    """Groups of 4, 1 and 3 completions, of 1 to 12 tokens behind prompts of 1 to 12."""
    completions = random_ids(8, seed=2)
    completions[1] = completions[1][:1]
    return batch_of(random_ids(3, seed=1), [0, 0, 0, 0, 1, 2, 2, 2], completions)


def even_batch() -> TokenBatch:
    return batch_of(random_ids(2, seed=3, low=5, high=5), [0, 0, 0, 1, 1, 1], random_ids(6, seed=4, low=7, high=7))


def single_tokens() -> TokenBatch:
    return batch_of(random_ids(2, seed=3), [0, 0, 1, 1], random_ids(4, seed=4, low=1, high=1))


BATCHES = {"ragged": ragged_batch, "even": even_batch, "single tokens": single_tokens}


def gradients(model, batch, layout, with_aux_loss=False):
    model.zero_grad()
    scores = score_completions(model, batch, 0.8, layout, with_entropy=True, with_aux_loss=with_aux_loss)
    mask = batch.padded()[3].bool()
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(mask.shape, generator=generator)
    loss = (scores.logps * weights).masked_fill(~mask, 0.0).sum()
    if with_aux_loss:
        loss = loss + scores.aux_loss
    loss.backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return scores, grads, mask


@pytest.fixture(params=[384, 0], ids=["fused", "in blocks"])
def both_attentions(request, monkeypatch):
    monkeypatch.setattr(block_attention, "LONG_CONTEXT", request.param)


@pytest.mark.usefixtures("both_attentions")
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", MODELS)
def test_shared_prompt_equals_padded(name, batch):
    model, batch = MODELS[name](), BATCHES[batch]()
    with_aux_loss = name == "moe"
    plain, expected, mask = gradients(model, batch, "padded", with_aux_loss)
    assert choose_layout("shared_prompt", model, with_aux_loss) == ("shared_prompt", None)
    shared, found, _ = gradients(model, batch, "shared_prompt", with_aux_loss)
    torch.testing.assert_close(shared.logps[mask], plain.logps[mask], atol=1e-5, rtol=0)
    torch.testing.assert_close(shared.entropy[mask], plain.entropy[mask], atol=1e-5, rtol=0)
    assert not shared.logps[~mask].any()
    if with_aux_loss:
        torch.testing.assert_close(shared.aux_loss, plain.aux_loss, atol=1e-5, rtol=0)
    assert set(found) == set(expected) and expected
    for parameter, gradient in expected.items():
        torch.testing.assert_close(
            found[parameter], gradient, atol=5e-5, rtol=1e-4, msg=lambda m, p=parameter: f"{p}: {m}"
        )


def test_equal_to_1e_9_in_float64():
    model, batch = make_policy().double(), ragged_batch()
    plain, expected, mask = gradients(model, batch, "padded")
    choose_layout("shared_prompt", model, False)
    shared, found, _ = gradients(model, batch, "shared_prompt")
    # Rotary angles, norms and the softmax of attention are float32 in transformers, which bounds what can be equal.
    torch.testing.assert_close(shared.logps[mask], plain.logps[mask], atol=2e-6, rtol=0)
    for parameter, gradient in expected.items():
        torch.testing.assert_close(found[parameter], gradient, atol=2e-5, rtol=0)


def test_the_model_goes_on_as_before_outside_the_layout():
    ids = torch.tensor([random_ids(1, low=9, high=9)[0]])
    model = make_policy()
    before = model(ids).logits
    choose_layout("shared_prompt", model, False)
    score_completions(model, ragged_batch(), 0.8, "shared_prompt")
    assert torch.equal(model(ids).logits, before)
    expected = make_policy().generate(ids, max_new_tokens=8, do_sample=False)
    assert torch.equal(model.generate(ids, max_new_tokens=8, do_sample=False), expected)


def test_every_prompt_is_computed_once_and_nothing_is_padded():
    batch = ragged_batch()
    packed = pack(batch)
    prompts = [len(batch.prompt_ids[row]) for row in (0, 4, 5)]
    inner = sum(len(ids) - 1 for ids in batch.completion_ids)
    assert packed.input_ids.shape == (1, sum(prompts) + inner)
    # A prompt token stands for one token of each of its completions, so that weights add up to the padded layout's
    # tokens, less the last token of each completion.
    padded_tokens = sum(map(len, [*batch.prompt_ids, *batch.completion_ids])) - 8
    assert packed.multiplicity.sum() == padded_tokens


def test_chunks_of_the_head_change_nothing(monkeypatch):
    model, batch = make_policy(), ragged_batch()
    choose_layout("shared_prompt", model, False)
    whole, expected, mask = gradients(model, batch, "shared_prompt")
    monkeypatch.setattr(scoring_head, "LOGITS_PER_CHUNK", 3 * 259)
    chunked, found, _ = gradients(model, batch, "shared_prompt")
    torch.testing.assert_close(chunked.logps, whole.logps, atol=1e-6, rtol=0)
    for parameter, gradient in expected.items():
        torch.testing.assert_close(found[parameter], gradient, atol=1e-5, rtol=1e-5)


def make_gpt2():
    return GPT2LMHeadModel(GPT2Config(vocab_size=259, n_embd=32, n_layer=1, n_head=2, n_positions=64))


def chunked_qwen2():
    config = Qwen2Config(**SHAPE)
    config.layer_types = ["full_attention", "chunked_attention"]
    model = Qwen2ForCausalLM(Qwen2Config(**SHAPE))
    model.config = config
    return model


REFUSED = {
    "chunked attention": (lambda: chunked_qwen2(), False, "neither the whole context nor a sliding window"),
    "eager": (lambda: make_policy(attn_implementation="eager"), False, "attn_implementation='eager'"),
    "generic router": ("qwen3_moe", True, "router loss cannot count"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_cannot_fall_back_with_a_reason(name):
    make, with_aux_loss, reason = REFUSED[name]
    if make == "qwen3_moe":
        from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

        make = lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**SHAPE, num_experts=4, num_experts_per_tok=2))  # noqa: E731
    model = seeded(make)
    layout, why = choose_layout("shared_prompt", model, with_aux_loss)
    assert layout == "padded" and reason in why
    score_completions(model, ragged_batch(), 0.8, layout)


def test_a_model_whose_logits_are_changed_after_the_head_is_found_out():
    """Structure does not show it (a soft cap, say), trying it does."""

    class Capped(type(make_llama())):
        def forward(self, input_ids, attention_mask=None, position_ids=None, logits_to_keep=0, **kwargs):
            outputs = super().forward(input_ids, attention_mask, position_ids, logits_to_keep=logits_to_keep, **kwargs)
            outputs.logits = 3 * torch.tanh(outputs.logits / 3)
            return outputs

    model = make_llama()
    model.__class__ = Capped
    layout, why = choose_layout("shared_prompt", model, False)
    assert layout == "padded" and "differ" in why
    assert model.config._attn_implementation == "sdpa"


def test_a_model_that_had_a_trainer_before_keeps_the_layout():
    model = make_policy()
    assert choose_layout("shared_prompt", model, False) == choose_layout("shared_prompt", model, False)
    assert choose_layout("shared_prompt", model, False) == ("shared_prompt", None)


def test_padded_is_kept_when_asked_for():
    model = make_policy()
    assert choose_layout("padded", model, False) == ("padded", None)
    assert model.config._attn_implementation == "sdpa"


def test_gpt2_runs_in_the_layout_that_is_chosen_for_it():
    model, batch = seeded(make_gpt2), ragged_batch()
    plain, expected, mask = gradients(model, batch, "padded")
    layout, _ = choose_layout("shared_prompt", model, False)
    scores, found, _ = gradients(model, batch, layout)
    torch.testing.assert_close(scores.logps[mask], plain.logps[mask], atol=1e-5, rtol=0)


def test_onednn_and_layout_together_survive_a_copy():
    import copy

    model, batch = make_policy(), ragged_batch()
    plain, expected, mask = gradients(model, batch, "padded")
    use_onednn(model)
    use_lean_norms(model)
    choose_layout("shared_prompt", model, False)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    scores, found, _ = gradients(twin, batch, "shared_prompt")
    torch.testing.assert_close(scores.logps[mask], plain.logps[mask], atol=1e-5, rtol=0)
    for parameter, gradient in expected.items():
        torch.testing.assert_close(found[parameter], gradient, atol=5e-5, rtol=1e-4)
