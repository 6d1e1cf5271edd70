# SPDX-License-Identifier: Apache-2.0
"""Gated feed-forwards that keep less against those of transformers, forward and backward."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny import make_policy
from torch import nn
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.models.mistral.modeling_mistral import MistralMLP
from transformers.models.qwen2.modeling_qwen2 import Qwen2MLP
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeMLP

from minimind_hf.forward import lean_mlp
from minimind_hf.forward.lean import use_onednn
from minimind_hf.forward.lean_mlp import use_lean_mlps

SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 2}
KINDS = {
    LlamaMLP: LlamaConfig,
    MistralMLP: MistralConfig,
    Qwen2MLP: Qwen2Config,
    Qwen3MLP: Qwen3Config,
    Qwen3MoeMLP: Qwen3MoeConfig,
}


def pair(kind=Qwen3MLP, dtype=torch.float64, **config) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    module = kind(KINDS[kind](**SIZES, **config)).to(dtype)
    lean = copy.deepcopy(module)
    assert use_lean_mlps(lean) == 1
    return module, lean


def run(module: nn.Module, x: torch.Tensor, upstream: torch.Tensor) -> list[torch.Tensor | None]:
    x = x.clone().requires_grad_()
    module.zero_grad()
    out = module(x)
    out.backward(upstream)
    return [out.detach(), x.grad, *(parameter.grad for parameter in module.parameters())]


def kept_numbers(module: nn.Module, x: torch.Tensor) -> int:
    """Numbers that the backward pass keeps besides weights and the input."""
    own = {parameter.data_ptr() for parameter in module.parameters()} | {x.data_ptr()}
    kept = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in own:
            kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        module(x).sum()
    return sum(kept.values())


@pytest.mark.parametrize("rows_per_tile", [64, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(7, 16), (2, 5, 16)])
def test_equals_the_module_of_transformers(kind, shape, rows_per_tile, monkeypatch):
    monkeypatch.setattr(lean_mlp, "ROWS_PER_TILE", rows_per_tile)
    module, lean = pair(kind)
    x, upstream = 3 * torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    for ours, expected in zip(run(lean, x, upstream), run(module, x, upstream), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-12, rtol=1e-12)


def test_float32_by_onednn():
    module, lean = pair(dtype=torch.float32)
    use_onednn(lean)
    x, upstream = torch.randn(2, 5, 16), torch.randn(2, 5, 16)
    for ours, expected in zip(run(lean, x, upstream), run(module, x, upstream), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


def test_it_keeps_two_tensors_instead_of_four():
    module, lean = pair()
    x = torch.randn(10, 16, dtype=torch.float64)
    assert kept_numbers(module, x) == 4 * 10 * 24
    assert kept_numbers(lean, x) == 2 * 10 * 24


@pytest.mark.parametrize("frozen", ["gate_proj", "up_proj", "down_proj"])
def test_what_is_frozen_gets_no_gradient(frozen):
    module, lean = pair()
    for each in (module, lean):
        getattr(each, frozen).requires_grad_(False)
    x, upstream = torch.randn(7, 16, dtype=torch.float64), torch.randn(7, 16, dtype=torch.float64)
    ours, expected = run(lean, x, upstream), run(module, x, upstream)
    assert getattr(lean, frozen).weight.grad is None
    for found, given in zip(ours, expected, strict=True):
        assert (found is None) == (given is None)
        if given is not None:
            torch.testing.assert_close(found, given, atol=1e-12, rtol=1e-12)


def test_hooks_on_the_last_layer_are_called():
    _, lean = pair()
    seen = []
    lean.down_proj.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape))
    lean(torch.randn(3, 16, dtype=torch.float64))
    assert seen == [(3, 24)]


def test_another_forward_of_the_last_layer_is_called():
    _, lean = pair()
    lean.down_proj.forward = lambda x: torch.zeros(len(x), 16, dtype=x.dtype)
    assert not lean(torch.randn(3, 16, dtype=torch.float64)).any()


def test_biases_and_other_activations_go_their_usual_way():
    module, lean = pair(LlamaMLP, mlp_bias=True)
    x = torch.randn(3, 16, dtype=torch.float64)
    assert torch.equal(lean(x), module(x))
    assert use_lean_mlps(Qwen3MLP(Qwen3Config(**SIZES, hidden_act="gelu"))) == 0


def test_adapters_keep_their_part():
    model = get_peft_model(make_policy(), LoraConfig(target_modules=["down_proj"], init_lora_weights=False))
    ids = torch.arange(3, 11)[None]
    expected = model(ids).logits.detach()
    use_lean_mlps(model)
    found = model(ids).logits
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    assert all(p.grad is not None and p.grad.any() for name, p in model.named_parameters() if "lora" in name)
