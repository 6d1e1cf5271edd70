# SPDX-License-Identifier: Apache-2.0
"""Exponentials that do not overflow, and the divergences built from them."""

import math

import pytest
import torch

from minimind_hf.algorithms import approx_kl, bounded_exp, clip_fraction, k3

NAN = float("nan")


def test_below_the_threshold_it_is_exp_bit_for_bit(dtype):
    x = torch.linspace(-40, 30, 281, dtype=dtype)
    assert torch.equal(bounded_exp(x), x.exp())
    assert bounded_exp(torch.tensor(-math.inf, dtype=dtype)) == 0


def test_beyond_it_goes_on_along_the_tangent():
    x = torch.tensor([30.0, 31.0, 200.0], dtype=torch.float64, requires_grad=True)
    value = bounded_exp(x)
    value.sum().backward()
    scale = math.exp(30)
    torch.testing.assert_close(value.detach() / scale, torch.tensor([1.0, 2.0, 171.0], dtype=torch.float64))
    torch.testing.assert_close(x.grad / scale, torch.ones(3, dtype=torch.float64))


def test_gradcheck_on_both_sides():
    x = torch.tensor([-3.0, 0.0, 1.5, 29.0, 31.0, 60.0], dtype=torch.float64, requires_grad=True)
    # Scaled to 1 so that finite differences at exp(30) keep their digits.
    scale = bounded_exp(x).detach()
    assert torch.autograd.gradcheck(lambda x: bounded_exp(x) / scale, x)
    near = torch.tensor([-3.0, -1e-2, 0.0, 0.7, 4.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(k3, (near, torch.zeros_like(near)))


@pytest.mark.parametrize("log_ratio", [89.0, 200.0])
@pytest.mark.parametrize("function", [bounded_exp, lambda x: k3(torch.zeros_like(x), x)])
def test_finite_in_float32_and_so_is_the_gradient_norm(function, log_ratio):
    x = torch.full((1_000_000,), log_ratio, requires_grad=True)
    value = function(x).sum()
    value.backward()
    assert value.isfinite() and value > 0
    assert (x.grad**2).sum().isfinite() and (x.grad > 0).all()


def test_k3_by_its_formula():
    new = torch.tensor([-0.5, -2.0, -1.0], dtype=torch.float64)
    ref = torch.tensor([-1.5, -1.0, -1.0], dtype=torch.float64)
    expected = torch.tensor([math.exp(-1) + 1 - 1, math.exp(1) - 1 - 1, 0.0], dtype=torch.float64)
    torch.testing.assert_close(k3(new, ref), expected)


def test_k3_keeps_its_digits_near_zero_in_float32():
    # d^2 / 2, where exp(d) - d - 1 has no digit left: one unit in the last place of 1 is 1.2e-7.
    d = torch.tensor([1e-4, -1e-4])
    torch.testing.assert_close(k3(torch.zeros(2), d), torch.tensor([5e-9, 5e-9]), rtol=1e-3, atol=0)


def test_k3_is_unbiased_for_tokens_of_the_policy():
    generator = torch.Generator().manual_seed(0)
    policy, reference = torch.randn(2, 50, generator=generator, dtype=torch.float64).log_softmax(dim=-1).unbind()
    # The exact expectation over the 50 tokens.
    expectation = (policy.exp() * k3(policy, reference)).sum()
    torch.testing.assert_close(expectation, (policy.exp() * (policy - reference)).sum())


def test_approx_kl_and_clip_fraction_by_hand():
    old = torch.tensor([[0.0, 0.0, 0.0, NAN]])
    new = torch.tensor([[0.1, -0.4, 0.3, 0.0]], requires_grad=True)
    mask = torch.tensor([[1, 1, 1, 0]])
    # (0.01 + 0.16 + 0.09) / 2 / 3; the ratios 1.105, 0.670, 1.350 leave 1 +- 0.2 twice.
    assert approx_kl(new, old, mask).item() == pytest.approx(0.26 / 6)
    assert clip_fraction(new, old, mask, 0.2).item() == pytest.approx(2 / 3)
    assert not approx_kl(new, old, mask).requires_grad
