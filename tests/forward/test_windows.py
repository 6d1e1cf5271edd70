# SPDX-License-Identifier: Apache-2.0
"""Models with sliding windows in the shared-prompt layout, by both kernels, against the padded one: values, gradients,
the critic, and windows that do not reach the attention."""

import pytest
import torch
from test_layouts import SHAPE, checkpointed, even_batch, gradients, ragged_batch
from tiny import make_policy
from torch.nn.attention import flex_attention as torch_flex
from transformers import (
    AutoModelForTokenClassification,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    MistralConfig,
    MistralForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from minimind_hf.forward import layouts, values
from minimind_hf.forward.introspection import sliding_windows
from minimind_hf.forward.layouts import choose_layout, score_completions
from minimind_hf.forward.shared_prompt import ATTENTION_NAME, FLEX_NAME, attach, kernels_for
from minimind_hf.forward.trial_batches import probe_batches
from minimind_hf.forward.values import choose_values_layout, completion_values

BOTH = ["sliding_attention", "full_attention"]


def gemma3(window=4, **config):
    config = {"layer_types": BOTH, "query_pre_attn_scalar": 8} | config
    return Gemma3ForCausalLM(Gemma3TextConfig(**SHAPE, sliding_window=window, **config))


MODELS = {
    "gemma3": gemma3,
    "gemma3, a window of one token": lambda: gemma3(window=1),
    "gemma3, a window that hides nothing": lambda: gemma3(window=512),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=5)),
    "olmo3": lambda: Olmo3ForCausalLM(Olmo3Config(**SHAPE, sliding_window=6, layer_types=BOTH[::-1])),
    "qwen2, upper layers": lambda: Qwen2ForCausalLM(
        Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=7, max_window_layers=1)
    ),
    "no windows": make_policy,
    "gemma3, checkpointed": lambda: checkpointed(gemma3()),
}


@pytest.fixture
def kernel(request, monkeypatch):
    """The kernel that a device or a CPU would take; FlexAttention refuses gradients on a CPU, though it has them."""
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *states: None)
    monkeypatch.setattr(layouts, "kernels_for", lambda *of: (request.param,))
    monkeypatch.setattr(values, "kernels_for", lambda *of: (request.param,))
    return request.param


def sharp(make):
    """Random weights large enough that what a token sees matters."""
    torch.manual_seed(0)
    model = make()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.mul_(4.0)
    return model


@pytest.mark.parametrize("kernel", [ATTENTION_NAME, FLEX_NAME], indirect=True)
@pytest.mark.parametrize("batch", [ragged_batch, even_batch])
@pytest.mark.parametrize("name", MODELS)
def test_shared_prompt_equals_padded(name, batch, kernel):
    model, batch = sharp(MODELS[name]), batch()
    plain, expected, mask = gradients(model, batch, "padded")
    assert choose_layout("shared_prompt", model, False) == ("shared_prompt", None)
    assert model.config._attn_implementation == kernel
    shared, found, _ = gradients(model, batch, "shared_prompt")
    torch.testing.assert_close(shared.logps[mask], plain.logps[mask], atol=2e-5, rtol=0)
    assert set(found) == set(expected) and expected
    for parameter, gradient in expected.items():
        scale = gradient.abs().max().item()
        torch.testing.assert_close(
            found[parameter], gradient, atol=2e-5 * max(1, scale), rtol=1e-3, msg=lambda m, p=parameter: f"{p}: {m}"
        )


def test_windows_change_what_is_computed():
    """Else the tests above would show nothing."""
    scores = [score_completions(sharp(lambda w=w: gemma3(w)), ragged_batch(), 1.0, "padded").logps for w in (4, 512)]
    assert (scores[0] - scores[1]).abs().max() > 0.1


@pytest.mark.parametrize("kernel", [ATTENTION_NAME, FLEX_NAME], indirect=True)
def test_the_critic_of_a_model_with_windows(kernel, tmp_path):
    sharp(MODELS["qwen2, upper layers"]).save_pretrained(tmp_path)
    torch.manual_seed(1)
    critic = AutoModelForTokenClassification.from_pretrained(tmp_path, num_labels=1).eval()
    batch = ragged_batch()
    mask = batch.padded()[3].bool()
    plain = completion_values(critic, batch, "padded")[mask]
    assert choose_values_layout("shared_prompt", critic, attaches=True) == "shared_prompt"
    assert critic.config._attn_implementation == kernel
    torch.testing.assert_close(completion_values(critic, batch, "shared_prompt")[mask], plain, atol=1e-5, rtol=0)


def test_a_window_that_does_not_reach_the_attention_is_found_out(monkeypatch):
    """Even where it is longer than any made-up prompt."""
    model = sharp(lambda: gemma3(window=4096, max_position_embeddings=8192))
    assert max(len(ids) for batch in probe_batches(model) for ids in batch.prompt_ids) < 4096
    assert choose_layout("shared_prompt", model, False) == ("shared_prompt", None)
    model.model.layers[0].self_attn.sliding_window = None
    layout, reason = choose_layout("shared_prompt", model, False)
    assert layout == "padded" and "do not reach its attention" in reason
    assert model.config._attn_implementation == "sdpa"


def test_prompts_of_the_trial_are_longer_than_the_window():
    lengths = {len(ids) for batch in probe_batches(gemma3(window=100)) for ids in batch.prompt_ids}
    assert 108 in lengths


def test_windows_of_a_config():
    assert sliding_windows(gemma3(9)) == [9, None]
    assert sliding_windows(MODELS["mistral"]()) == [5, 5]
    assert sliding_windows(MODELS["qwen2, upper layers"]()) == [None, 7]
    assert sliding_windows(make_policy()) == [None, None]
    assert sliding_windows(Qwen2ForCausalLM(Qwen2Config(**SHAPE, sliding_window=7))) == [None, None]


def test_flex_is_for_devices():
    cuda = torch.device("cuda")
    assert kernels_for(cuda, torch.bfloat16) == kernels_for(cuda, torch.float32) == (FLEX_NAME, ATTENTION_NAME)
    assert kernels_for(cuda, torch.float64) == kernels_for(torch.device("cpu"), torch.bfloat16) == (ATTENTION_NAME,)


def test_a_kernel_that_fails_its_trial_gives_way_to_the_next_and_is_named(monkeypatch, caplog):
    monkeypatch.setattr(layouts, "kernels_for", lambda *of: (FLEX_NAME, ATTENTION_NAME))
    monkeypatch.setattr(
        "minimind_hf.forward.shared_prompt.flex_row_attention", lambda query, key, value, mask, scaling: 0.5 * query
    )
    model = sharp(make_policy)
    assert choose_layout("shared_prompt", model, False) == ("shared_prompt", None)
    assert model.config._attn_implementation == ATTENTION_NAME
    assert "FlexAttention is not used" in caplog.text and "differ from the padded layout's by" in caplog.text


def test_dropout_goes_group_by_group(monkeypatch):
    """FlexAttention has none."""
    model = sharp(lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, attention_dropout=0.5))).train()
    attach(model, FLEX_NAME)
    monkeypatch.setattr("minimind_hf.forward.shared_prompt.flex_row_attention", None)
    torch.manual_seed(0)
    dropped = score_completions(model, ragged_batch(), 1.0, "shared_prompt").logps
    attach(model, ATTENTION_NAME)
    torch.manual_seed(0)
    assert torch.equal(dropped, score_completions(model, ragged_batch(), 1.0, "shared_prompt").logps)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [ATTENTION_NAME, FLEX_NAME], indirect=True)
def test_a_compiled_model_computes_the_same(kernel):
    """As with `torch_compile`: what the layout keeps for all layers is made while the forward is traced."""
    model, batch = sharp(gemma3), ragged_batch()
    choose_layout("shared_prompt", model, False)
    with torch.no_grad():
        expected = score_completions(model, batch, 1.0, "shared_prompt").logps
        model.compile(backend="eager")
        for _ in range(2):
            found = score_completions(model, batch, 1.0, "shared_prompt").logps
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
