# SPDX-License-Identifier: Apache-2.0
"""Products by oneDNN against `F.linear`, forward and backward."""

import pytest
import torch
import torch.nn.functional as F
from peft import AdaLoraConfig, LoraConfig, get_peft_model
from tiny import make_policy
from torch import nn

from minimind_hf.forward.lean import is_available, linear, product, use_onednn

pytestmark = pytest.mark.skipif(not is_available(), reason="this build of torch has no oneDNN")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7, 16), (2, 5, 16), (1, 1, 16), (3, 2, 2, 16)])
@pytest.mark.parametrize("frozen", [(), ("weight",), ("x",), ("bias",)])
def test_equals_f_linear(shape, bias, frozen):
    torch.manual_seed(0)
    tensors = {"x": torch.randn(shape), "weight": torch.randn(9, 16), "bias": torch.randn(9) if bias else None}
    upstream = torch.randn(*shape[:-1], 9)

    def run(function):
        leaves = {
            name: tensor.clone().requires_grad_(name not in frozen) if tensor is not None else None
            for name, tensor in tensors.items()
        }
        out = function(leaves["x"], leaves["weight"], leaves["bias"])
        out.backward(upstream)
        return out, {name: leaf.grad for name, leaf in leaves.items() if leaf is not None}

    out, grads = run(linear)
    expected, expected_grads = run(F.linear)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    for name, gradient in expected_grads.items():
        if gradient is None:
            assert grads[name] is None
        else:
            torch.testing.assert_close(grads[name], gradient, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", [(7, 16), (2, 5, 16), (3, 2, 2, 16)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_the_output_can_be_changed_in_place(shape, has_bias):
    """As AdaLoRA, aLoRA and some models do."""
    torch.manual_seed(0)
    x, weight = torch.randn(shape), torch.randn(9, 16)
    bias = torch.randn(9) if has_bias else None

    def run(function):
        leaves = [tensor.clone().requires_grad_() for tensor in (x, weight)]
        out = function(*leaves, bias)
        out += leaves[0].sum()
        out[..., 1:3].mul_(2.0)
        out.square().sum().backward()
        return [out, *(leaf.grad for leaf in leaves)]

    for found, expected in zip(run(linear), run(F.linear), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("config", [AdaLoraConfig, LoraConfig], ids=["AdaLoRA", "LoRA with variants"])
def test_adapters_train_on_onednn(config):
    options = {"init_r": 4, "target_r": 2, "total_step": 10} if config is AdaLoraConfig else {"use_dora": True}
    model = get_peft_model(make_policy(), config(target_modules="all-linear", task_type="CAUSAL_LM", **options))
    use_onednn(model)
    ids = torch.arange(3, 11)[None]
    model(ids, labels=ids).loss.backward()
    assert any(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


def test_strided_inputs_and_expanded_gradients():
    torch.manual_seed(0)
    x, weight = torch.randn(16, 6).t().requires_grad_(), torch.randn(9, 16, requires_grad=True)
    linear(x, weight).sum().backward()
    torch.testing.assert_close(weight.grad, x.detach().sum(0).expand(9, -1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_go_their_usual_way(dtype):
    x, weight = torch.randn(3, 16, dtype=dtype), torch.randn(9, 16, dtype=dtype)
    assert torch.equal(linear(x, weight), F.linear(x, weight))


def test_autocast_keeps_its_precision():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(torch.randn(3, 16), torch.randn(9, 16)).dtype == torch.bfloat16


def test_empty_input():
    assert linear(torch.randn(0, 16), torch.randn(9, 16)).shape == (0, 9)


def test_only_plain_linears_are_changed():
    class Own(nn.Linear):
        def forward(self, x):
            return x

    model = nn.Sequential(nn.Linear(4, 4), Own(4, 4), nn.LayerNorm(4), nn.Sequential(nn.Linear(4, 4)))
    expected = model(torch.ones(2, 4))
    assert use_onednn(model) == 2
    torch.testing.assert_close(model(torch.ones(2, 4)), expected, atol=1e-6, rtol=0)
    assert set(model.state_dict()) == set(nn.Sequential(*model).state_dict())


@pytest.mark.parametrize("shape", [(1030, 70), (1030, 1), (64, 64), (5, 3)])
def test_wide_transposed_matrices(shape):
    torch.manual_seed(0)
    rows, columns = shape
    x, weight = torch.randn(columns, rows).t(), torch.randn(9, columns)
    torch.testing.assert_close(product(x, weight), x @ weight.t(), atol=1e-5, rtol=1e-5)
