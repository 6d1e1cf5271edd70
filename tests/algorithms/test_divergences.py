# SPDX-License-Identifier: Apache-2.0
"""Divergences of distillation: by hand, by a loop, by autograd, and against trl's."""

import math

import pytest
import torch
from naming import raises_naming
from trl.experimental.gkd import GKDTrainer

from minimind_hf.algorithms import generalized_jsd, generalized_jsd_and_slope

BETAS = (0.0, 0.1, 0.5, 0.9, 1.0)


def random_logits(seed: int, scale: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 5, 17, generator=generator, dtype=torch.float64) * scale


def slow(student: list[float], teacher: list[float], beta: float) -> float:
    """The definition, number by number, of probabilities."""

    def kl(one, other):
        return sum(p * math.log(p / q) for p, q in zip(one, other, strict=True))

    if beta in (0.0, 1.0):
        return kl(teacher, student) if beta == 0 else kl(student, teacher)
    mixture = [beta * t + (1 - beta) * s for s, t in zip(student, teacher, strict=True)]
    return beta * kl(teacher, mixture) + (1 - beta) * kl(student, mixture)


def test_by_hand():
    student, teacher = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.75, 0.25]]).log()
    # forward: 3/4 ln(3/2) + 1/4 ln(1/2) = 0.1308; reverse: 1/2 ln(2/3) + 1/2 ln 2 = 0.1438
    assert generalized_jsd(student, teacher, 0.0).item() == pytest.approx(0.1308, abs=1e-4)
    assert generalized_jsd(student, teacher, 1.0).item() == pytest.approx(0.1438, abs=1e-4)


@pytest.mark.parametrize("beta", BETAS)
def test_equals_the_definition(beta):
    student, teacher = (torch.log_softmax(random_logits(seed), dim=-1) for seed in (0, 1))
    found = generalized_jsd(student, teacher, beta)
    rows = zip(student.exp().view(-1, 17).tolist(), teacher.exp().view(-1, 17).tolist(), strict=True)
    expected = torch.tensor([slow(*row, beta) for row in rows], dtype=torch.float64).view(2, 5)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_equals_trl(beta, temperature):
    student, teacher = random_logits(0).requires_grad_(), random_logits(1)
    own = student.detach().clone().requires_grad_()
    labels = torch.ones(2, 5, dtype=torch.long)
    labels[0, 1:3] = -100  # a mask in the middle
    expected = GKDTrainer.generalized_jsd_loss(student, teacher, labels, beta, temperature)
    found = generalized_jsd(*(torch.log_softmax(each / temperature, dim=-1) for each in (own, teacher)), beta)
    found = found[labels != -100].mean()
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    expected.backward()
    found.backward()
    torch.testing.assert_close(own.grad, student.grad, atol=1e-12, rtol=0)


@pytest.mark.parametrize("beta", BETAS)
def test_the_slope_is_the_gradient(beta):
    logits, teacher = random_logits(0).requires_grad_(), torch.log_softmax(random_logits(1), dim=-1)
    student = torch.log_softmax(logits, dim=-1)
    generalized_jsd(student, teacher, beta).sum().backward()
    divergence, slope = generalized_jsd_and_slope(student.detach(), teacher, beta)
    torch.testing.assert_close(divergence, generalized_jsd(student.detach(), teacher, beta), atol=1e-12, rtol=0)
    torch.testing.assert_close(slope, logits.grad, atol=1e-12, rtol=0)


@pytest.mark.parametrize("beta", BETAS)
def test_a_student_like_its_teacher_is_0_away_and_no_divergence_is_negative(beta):
    logps = torch.log_softmax(random_logits(0), dim=-1)
    divergence, slope = generalized_jsd_and_slope(logps, logps, beta)
    assert divergence.abs().max() < 1e-14 and slope.abs().max() < 1e-14
    other = torch.log_softmax(random_logits(1), dim=-1)
    assert (generalized_jsd(logps, other, beta) > 0).all()


def test_between_the_two_it_is_bounded_and_reaches_both():
    student, teacher = (torch.log_softmax(random_logits(seed, scale=300.0), dim=-1) for seed in (0, 1))
    assert generalized_jsd(student, teacher, 0.5).max() <= math.log(2) + 1e-12
    assert generalized_jsd(student, teacher, 1.0).max() > 10
    student, teacher = (torch.log_softmax(random_logits(seed, scale=1.0), dim=-1) for seed in (0, 1))
    for small, limit in ((1e-7, 0.0), (1 - 1e-7, 1.0)):
        scale = small if limit == 0 else 1 - small
        near = generalized_jsd(student, teacher, small) / scale
        torch.testing.assert_close(near, generalized_jsd(student, teacher, limit), rtol=1e-4, atol=0)


def test_what_is_refused():
    logps = torch.zeros(2, 3)
    with raises_naming(ValueError, "beta", 1.5):
        generalized_jsd(logps, logps, 1.5)
    with raises_naming(ValueError, (2, 3), (2, 4)):
        generalized_jsd_and_slope(logps, torch.zeros(2, 4), 0.5)
