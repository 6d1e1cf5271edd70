# SPDX-License-Identifier: Apache-2.0
"""How far an engine is from the trainer, and what corrects it; expected values by hand."""

import math

import pytest
import torch
from loss_calls import policy_loss, ppo_policy_loss
from naming import raises_naming

from minimind_hf.algorithms import correction_weights, sampling_mismatch

NAN = math.nan
# exp of the differences: 1.5, 3, 0.5 and 1; the last slot of the second row is padding.
ENGINE = torch.tensor([[-2.0, -3.0], [-1.0, NAN]])
TRAINER = ENGINE + torch.tensor([[1.5, 3.0], [0.5, 1.0]]).log()
MASK = torch.tensor([[1, 1], [1, 0]])


@pytest.mark.parametrize(
    ("how", "cap", "expected"),
    [
        ("truncate", 2.0, [[1.5, 2.0], [0.5, 0.0]]),
        ("mask", 2.0, [[1.5, 0.0], [0.5, 0.0]]),
        ("truncate", 1.0, [[1.0, 1.0], [0.5, 0.0]]),
        ("mask", 5.0, [[1.5, 3.0], [0.5, 0.0]]),
    ],
)
def test_weights(how, cap, expected):
    torch.testing.assert_close(correction_weights(TRAINER, ENGINE, MASK, how, cap), torch.tensor(expected))


def test_a_token_that_the_engine_found_impossible_gets_a_finite_weight():
    weights = correction_weights(torch.tensor([[-0.1]]), torch.tensor([[-500.0]]), torch.ones(1, 1), "truncate")
    assert weights.item() == 2.0


@pytest.mark.parametrize(
    ("how", "cap", "named"),
    [
        ("none", 2.0, ["how", "'none'"]),
        ("clip", 2.0, ["how", "'clip'"]),
        ("truncate", 0.5, ["cap", 0.5]),
        ("mask", NAN, ["cap", NAN]),
    ],
)
def test_settings_that_cannot_be_meant(how, cap, named):
    with raises_naming(ValueError, *named):
        correction_weights(TRAINER, ENGINE, MASK, how, cap)


def test_mismatch():
    found = sampling_mismatch(TRAINER, ENGINE, MASK)
    # |ln 1.5| = 0.405465, |ln 3| = 1.098612, |ln 0.5| = 0.693147; k3 = ratio - 1 - ln(ratio), ratio trainer / engine:
    # 0.5 - 0.405465, 2 - 1.098612, -0.5 + 0.693147.
    assert found["mean"].item() == pytest.approx((0.405465 + 1.098612 + 0.693147) / 3, abs=1e-6)
    assert found["max"].item() == pytest.approx(1.098612, abs=1e-6)
    assert found["k3"].item() == pytest.approx((0.094535 + 0.901388 + 0.193147) / 3, abs=1e-6)
    assert found["num_tokens"] == 3


def test_mismatch_of_nothing_is_0():
    found = sampling_mismatch(TRAINER, ENGINE, torch.zeros_like(MASK))
    assert [value.item() for value in found.values()] == [0, 0, 0, 0]


def test_k3_estimates_the_divergence_from_the_engine_to_the_trainer():
    torch.manual_seed(0)
    engine, trainer = torch.randn(6).log_softmax(0), torch.randn(6).log_softmax(0)
    drawn = torch.multinomial(engine.exp(), 200_000, replacement=True)
    found = sampling_mismatch(trainer[drawn][None], engine[drawn][None], torch.ones(1, 200_000))
    exact = (engine.exp() * (engine - trainer)).sum().item()
    assert found["k3"].item() == pytest.approx(exact, rel=0.03)


def losses():
    """Each loss as a function of (logps, token_weights), without a reference."""
    old, advantages = torch.tensor([[-1.0, -2.0], [-1.5, NAN]]), torch.tensor([1.0, -0.5])

    def by(loss, **options):
        return lambda logps, weights: loss(logps, old, None, advantages, MASK, token_weights=weights, **options)[0]

    return {
        "cispo": by(policy_loss, loss_type="cispo", beta=0.0),
        "grpo": by(policy_loss, loss_type="grpo", beta=0.0),
        "ppo": by(ppo_policy_loss, kl_coef=0.0),
    }


@pytest.mark.parametrize("name", losses())
def test_weights_scale_the_gradient_of_their_token(name):
    loss = losses()[name]
    gradients = {}
    for key, weights in {"plain": None, "weighted": torch.tensor([[1.5, 0.0], [0.5, NAN]])}.items():
        logps = torch.tensor([[-1.1, -2.0], [-1.4, NAN]], requires_grad=True)
        loss(logps, weights).backward()
        gradients[key] = logps.grad
    expected = gradients["plain"] * torch.tensor([[1.5, 0.0], [0.5, 0.0]])
    torch.testing.assert_close(gradients["weighted"], expected)
    assert gradients["plain"].abs().min(dim=1).values.tolist()[0] > 0


@pytest.mark.parametrize("loss", [policy_loss, ppo_policy_loss])
def test_the_kl_term_is_not_weighted(loss):
    logps, ref = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -1.0]])
    options = {policy_loss: {"beta": 0.3}, ppo_policy_loss: {"kl_coef": 0.3}}[loss]
    ones, zeros = torch.ones(1, 2), torch.zeros(1, 2)
    without = loss(logps, logps, ref, torch.ones(1), ones, token_weights=zeros, **options)[0]
    # k3 with d = ref - new = -0.5 and 1: exp(-0.5) - 1 + 0.5 = 0.106531, e - 2 = 0.718282
    assert without.item() == pytest.approx(0.3 * (0.106531 + 0.718282) / 2, abs=1e-6)
