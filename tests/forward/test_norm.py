# SPDX-License-Identifier: Apache-2.0
"""Norms with a backward of their own against those of transformers, forward and backward."""

import copy

import pytest
import torch
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.mistral.modeling_mistral import MistralRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeRMSNorm

from minimind_hf.forward.lean import use_lean_norms

NORMS = [LlamaRMSNorm, MistralRMSNorm, Qwen2RMSNorm, Qwen3RMSNorm, Qwen3MoeRMSNorm]


def pair(kind=Qwen3MoeRMSNorm, width: int = 16, eps: float = 1e-6) -> tuple[nn.Module, nn.Module]:
    """A module of transformers with weights of its own, and a copy of it with the lean forward."""
    torch.manual_seed(0)
    module = kind(width, eps=eps)
    nn.init.normal_(module.weight)
    lean = copy.deepcopy(module)
    assert use_lean_norms(lean) == 1
    return module, lean


def run(module: nn.Module, x: torch.Tensor, upstream: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x = x.clone().requires_grad_()
    module.weight.grad = None
    out = module(x)
    out.backward(upstream.to(out.dtype))
    return out.detach(), x.grad, module.weight.grad


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("shape", [(7, 16), (2, 5, 16), (2, 5, 3, 16)])
@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_equals_the_module_of_transformers(kind, shape, eps):
    module, lean = pair(kind, eps=eps)
    x, upstream = 3 * torch.randn(shape), torch.randn(shape)
    for ours, expected in zip(run(lean, x, upstream), run(module, x, upstream), strict=True):
        assert ours.dtype == expected.dtype
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


def test_gradients_in_float64_by_hand():
    # width 2, weight (1, 1), eps 0: y = x * sqrt(2) / |x|; for x = (3, 4) and dL/dy = (1, 0)
    # dL/dx = sqrt(2) / 5 * ((1, 0) - (3, 4) * 3 / 25) = sqrt(2) / 5 * (16, -12) / 25
    lean = Qwen3MoeRMSNorm(2, eps=0.0)
    use_lean_norms(lean)
    out, grad, weight_grad = run(lean, torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0]]))
    root = 2**0.5
    torch.testing.assert_close(out, torch.tensor([[3.0, 4.0]]) * root / 5)
    torch.testing.assert_close(grad, torch.tensor([[16.0, -12.0]]) * root / 125)
    torch.testing.assert_close(weight_grad, torch.tensor([3.0, 0.0]) * root / 5)


@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16])
def test_bfloat16_rounds_as_the_module_does(weight_dtype):
    module, lean = pair(width=64)
    module, lean = module.to(weight_dtype), lean.to(weight_dtype)
    x, upstream = torch.randn(5, 64).bfloat16(), torch.randn(5, 64)
    ours, expected = run(lean, x, upstream), run(module, x, upstream)
    assert [each.dtype for each in ours] == [each.dtype for each in expected]
    for mine, theirs in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=0.03, rtol=0.02)


@pytest.mark.parametrize("frozen", ["x", "weight"])
def test_what_is_frozen_gets_no_gradient(frozen):
    module, lean = pair()
    grads = []
    for each in (module, lean):
        x = torch.ones(3, 16).mul(torch.arange(16)).requires_grad_(frozen != "x")
        each.weight.requires_grad_(frozen != "weight")
        each(x).square().sum().backward()
        grads.append((x.grad, each.weight.grad))
    for ours, expected in zip(*reversed(grads), strict=True):
        assert (ours is None) == (expected is None)
        if expected is not None:
            torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-5)


def test_other_inputs_go_their_usual_way():
    module, lean = pair()
    for x in (torch.randn(3, 16, dtype=torch.float64), torch.randn(16), torch.randn(0, 16)):
        assert torch.equal(lean(x), module(x))


def test_only_norms_that_are_known_are_changed():
    class Own(Qwen3MoeRMSNorm):
        pass

    model = nn.Sequential(GemmaRMSNorm(4), Own(4), nn.RMSNorm(4), nn.Sequential(LlamaRMSNorm(4)))
    assert use_lean_norms(model) == 1
    assert set(model.state_dict()) == {"0.weight", "1.weight", "2.weight", "3.0.weight"}
