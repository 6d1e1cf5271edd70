# SPDX-License-Identifier: Apache-2.0
"""GRPO, CISPO and PPO losses: against plain loops, at the clips, with spoiled masked slots and extreme ratios."""

import math
from dataclasses import replace

import pytest
import torch
from loss_calls import policy_loss, ppo_policy_loss
from naming import raises_naming

from minimind_hf.algorithms import (
    cispo_token_loss,
    explained_variance,
    grpo_token_loss,
    loss_denominator,
    resolve_epsilon_high,
    value_loss,
)

NAN, INF = float("nan"), float("inf")
AGGREGATIONS = ["sequence", "token", "constant"]
LIMIT = 10


def run(batch, loss_function=policy_loss, **settings):
    """Loss, gradient and metrics of a batch."""
    loss, metrics = loss_function(
        batch.logps, batch.old_logps, batch.ref_logps, batch.advantages, batch.mask, **settings
    )
    (gradient,) = torch.autograd.grad(loss, batch.logps)
    return loss, gradient, metrics


# --- epsilon_high ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss_type, given, expected",
    [("cispo", None, 5.0), ("cispo", 1.2, 1.2), ("grpo", None, 0.2), ("grpo", 0.28, 0.28), ("grpo", 0.0, 0.0)],
)
def test_resolve_epsilon_high(loss_type, given, expected):
    assert resolve_epsilon_high(loss_type, 0.2, given) == expected


@pytest.mark.parametrize("loss_type, given", [("cispo", 0.0), ("cispo", -1.0), ("grpo", -0.1)])
def test_epsilon_high_that_cannot_be_meant_is_refused(loss_type, given):
    with raises_naming(ValueError, "epsilon_high", given):
        resolve_epsilon_high(loss_type, 0.2, given)


def test_unknown_loss_type_is_refused(batch):
    with raises_naming(ValueError, "loss_type", "cispo", "grpo", "'gspo'"):
        run(batch, loss_type="gspo")


# --- per-token losses ------------------------------------------------------------------------------------------


def test_grpo_clips_where_that_makes_the_objective_smaller():
    ratios = torch.tensor([[0.5, 1.0, 1.25, 1.5]], dtype=torch.float64)
    zeros = torch.zeros_like(ratios)
    gains = grpo_token_loss(ratios.log(), zeros, torch.tensor([2.0], dtype=torch.float64))
    losses = grpo_token_loss(ratios.log(), zeros, torch.tensor([-2.0], dtype=torch.float64))
    expected_gains = torch.tensor([[-1.0, -2.0, -2.4, -2.4]], dtype=torch.float64)
    expected_losses = torch.tensor([[1.6, 2.0, 2.5, 3.0]], dtype=torch.float64)
    torch.testing.assert_close(gains, expected_gains)
    torch.testing.assert_close(losses, expected_losses)
    higher = grpo_token_loss(ratios.log(), zeros, torch.tensor([2.0], dtype=torch.float64), epsilon_high=0.28)
    torch.testing.assert_close(higher, torch.tensor([[-1.0, -2.0, -2.5, -2.56]], dtype=torch.float64))


@pytest.mark.parametrize("epsilon_high, weights", [(None, [0.5, 1.0, 5.0, 5.0]), (2.0, [0.5, 1.0, 2.0, 2.0])])
def test_cispo_bounds_the_weight_and_keeps_every_gradient(epsilon_high, weights):
    ratios = torch.tensor([[0.5, 1.0, 5.0, 50.0]], dtype=torch.float64)
    logps = torch.full((1, 4), -1.5, dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([[1.0, -2.0, 1.0, -2.0]], dtype=torch.float64)
    loss = cispo_token_loss(logps, logps.detach() - ratios.log(), advantages, epsilon_high)
    loss.sum().backward()
    slope = -torch.tensor([weights], dtype=torch.float64) * advantages
    torch.testing.assert_close(loss.detach(), slope * -1.5)
    torch.testing.assert_close(logps.grad, slope)


def test_on_policy_gradients_of_both_losses_are_those_of_reinforce(batch):
    batch = replace(batch, old_logps=batch.logps.detach())
    gradients = [run(batch, loss_type=kind, beta=0.0)[1] for kind in ("grpo", "cispo")]
    tokens = batch.mask.sum(dim=1, keepdim=True).clamp(min=1)
    sequences = batch.mask.any(dim=1).sum()
    expected = -batch.advantages[:, None] * batch.mask / tokens / sequences
    for gradient in gradients:
        torch.testing.assert_close(gradient, expected)


def test_on_policy_nothing_is_clipped(batch):
    batch = replace(batch, old_logps=batch.logps.detach())
    for loss_type in ("grpo", "cispo"):
        metrics = run(batch, loss_type=loss_type)[2]
        assert metrics["ratio_mean"] == 1
        assert metrics["approx_kl"] == metrics["clip_low"] == metrics["clip_high"] == metrics["clip_region"] == 0


# --- the composed loss -----------------------------------------------------------------------------------------


def loop_policy_loss(batch, loss_type, beta, epsilon, epsilon_high, aggregation):
    """The formulas in plain Python, token by token: loss, and means over tokens of KL, ratio and clips."""
    rows, seen = [], {"kl_ref": [], "ratio_mean": [], "clip_low": [], "clip_high": [], "approx_kl": []}
    for i, mask in enumerate(batch.mask.tolist()):
        row = []
        for t, valid in enumerate(mask):
            if not valid:
                continue
            new, old, ref = (x[i, t].item() for x in (batch.logps, batch.old_logps, batch.ref_logps))
            advantage = batch.advantages[i].item()
            ratio, d = math.exp(new - old), ref - new
            k3 = math.exp(d) - d - 1
            if loss_type == "cispo":
                top = 5.0 if epsilon_high is None else epsilon_high
                loss = -min(ratio, top) * advantage * new
                low, high = False, ratio > top
            else:
                top = 1 + (epsilon if epsilon_high is None else epsilon_high)
                loss = -min(ratio * advantage, min(max(ratio, 1 - epsilon), top) * advantage)
                low, high = ratio < 1 - epsilon and advantage < 0, ratio > top and advantage > 0
            row.append(loss + beta * k3)
            for name, value in zip(seen, (k3, ratio, low, high, 0.5 * (new - old) ** 2), strict=True):
                seen[name].append(value)
        if row:
            rows.append(row)
    total = sum(map(sum, rows))
    loss = {
        "sequence": sum(sum(row) / len(row) for row in rows) / len(rows),
        "token": total / sum(map(len, rows)),
        "constant": total / (len(rows) * LIMIT),
    }[aggregation]
    return loss, {name: sum(values) / len(values) for name, values in seen.items()}


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("loss_type, epsilon_high", [("cispo", None), ("cispo", 1.1), ("grpo", None), ("grpo", 0.4)])
def test_policy_loss_agrees_with_a_loop(batch, loss_type, epsilon_high, aggregation):
    loss, _, metrics = run(
        batch,
        loss_type=loss_type,
        beta=0.1,
        epsilon=0.15,
        epsilon_high=epsilon_high,
        loss_aggregation=aggregation,
        max_completion_length=LIMIT,
    )
    expected, means = loop_policy_loss(batch, loss_type, 0.1, 0.15, epsilon_high, aggregation)
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    for name, value in means.items():
        assert metrics[name].item() == pytest.approx(value, rel=1e-12), name
    assert metrics["clip_region"].item() == pytest.approx(means["clip_low"] + means["clip_high"])
    assert metrics["num_tokens"].item() == batch.mask.sum().item()
    assert not any(value.requires_grad for value in metrics.values())


def test_gradcheck_where_the_losses_are_smooth(batch):
    # Ratios within 1 +- 0.1, away from the kinks of the clip.
    old = batch.logps.detach() + (batch.old_logps - batch.logps.detach()).clamp(-0.1, 0.1)
    batch = replace(batch, old_logps=old)

    def loss(logps):
        return policy_loss(logps, old, batch.ref_logps, batch.advantages, batch.mask, loss_type="grpo")[0]

    assert torch.autograd.gradcheck(loss, batch.logps)
    values = batch.logps
    returns, old_values = batch.ref_logps + 3.0, values.detach() + 0.05
    assert torch.autograd.gradcheck(lambda v: value_loss(v, old_values, returns, batch.mask)[0], values)


def test_advantages_may_be_given_per_token(batch):
    loss, gradient, _ = run(batch)
    per_token = replace(batch, advantages=batch.advantages[:, None].expand_as(batch.mask))
    again, gradient_again, _ = run(per_token)
    assert torch.equal(loss, again) and torch.equal(gradient, gradient_again)


def test_zero_advantages_leave_only_the_kl(batch):
    silent = replace(batch, advantages=torch.zeros_like(batch.advantages))
    for loss_type in ("grpo", "cispo"):
        assert run(silent, loss_type=loss_type, beta=0.0)[1].abs().max() == 0
        assert run(silent, loss_type=loss_type, beta=0.1)[1].abs().max() > 0


def test_only_the_model_that_is_trained_receives_a_gradient(batch):
    constants = [batch.old_logps, batch.ref_logps, batch.advantages]
    for tensor in constants:
        tensor.requires_grad_()
    for loss_function in (policy_loss, ppo_policy_loss):
        loss, _ = loss_function(batch.logps, *constants, batch.mask)
        gradients = torch.autograd.grad(loss, [batch.logps, *constants], allow_unused=True)
        assert gradients[0] is not None and gradients[1:] == (None, None, None)
    loss, _ = value_loss(batch.logps, *constants[:2], batch.mask)
    gradients = torch.autograd.grad(loss, [batch.logps, *constants[:2]], allow_unused=True)
    assert gradients[0] is not None and gradients[1:] == (None, None)


def test_the_reference_may_be_missing_only_without_kl(batch):
    batch = replace(batch, ref_logps=None)
    assert "kl_ref" not in run(batch, beta=0.0)[2]
    assert "kl_ref" not in run(batch, ppo_policy_loss, kl_coef=0.0)[2]
    with raises_naming(ValueError, "beta", 0.1, "ref_logps"):
        run(batch, beta=0.1)
    with raises_naming(ValueError, "kl_coef", 0.02, "ref_logps"):
        run(batch, ppo_policy_loss)


def test_shapes_that_would_broadcast_are_refused(batch):
    with raises_naming(ValueError, "old_logps", "(1, 7)", "(8, 7)"):
        run(replace(batch, old_logps=batch.old_logps[:1]))
    with raises_naming(ValueError, "advantages", "(8, 1)", "(8, 7)"):
        run(replace(batch, advantages=batch.advantages[:, None]))


# --- masked slots ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("junk", [NAN, INF, -INF, 1e30])
@pytest.mark.parametrize("loss_type", ["grpo", "cispo", "ppo"])
def test_masked_slots_change_nothing(batch, loss_type, junk):
    loss_function = ppo_policy_loss if loss_type == "ppo" else policy_loss
    settings = {} if loss_type == "ppo" else {"loss_type": loss_type}
    per_token = replace(batch, advantages=batch.advantages[:, None].expand_as(batch.mask))
    clean = run(per_token, loss_function, **settings)

    def spoiled(x):
        return x.detach().masked_fill(~batch.mask, junk)

    dirty = replace(
        batch,
        logps=spoiled(batch.logps).requires_grad_(),
        old_logps=spoiled(batch.old_logps),
        ref_logps=spoiled(batch.ref_logps),
        advantages=spoiled(per_token.advantages),
    )
    loss, gradient, metrics = run(dirty, loss_function, **settings)
    assert torch.equal(loss, clean[0])
    assert torch.equal(gradient, clean[1])
    assert metrics == clean[2]


def test_masked_slots_change_nothing_in_the_value_loss(batch):
    def evaluate(junk):
        values, old, returns = (
            x.detach().masked_fill(~batch.mask, junk) for x in (batch.logps, batch.old_logps, batch.ref_logps)
        )
        loss, metrics = value_loss(values.requires_grad_(), old, returns, batch.mask)
        loss.backward()
        return loss.item(), values.grad.tolist(), metrics, explained_variance(values, returns, batch.mask)

    assert evaluate(0.0) == evaluate(NAN) == evaluate(INF)


@pytest.mark.parametrize("loss_function", [policy_loss, ppo_policy_loss])
def test_a_step_in_which_all_is_masked_out_moves_nothing(batch, loss_function):
    nothing = replace(batch, mask=torch.zeros_like(batch.mask))
    loss, gradient, metrics = run(nothing, loss_function, denominator=torch.tensor(0))
    assert loss == 0 and gradient.abs().max() == 0
    assert metrics["num_tokens"] == 0 and all(value.isfinite() for value in metrics.values())


# --- extreme ratios --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("log_ratio", [89.0, 200.0, -200.0])
@pytest.mark.parametrize("loss_type", ["grpo", "cispo"])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_float32_survives_extreme_log_ratios(log_ratio, loss_type, advantage):
    logps = torch.full((4, 8), -201.0, requires_grad=True)
    other = torch.full((4, 8), -201.0 - log_ratio)
    mask, advantages = torch.ones(4, 8), torch.full((4,), advantage)
    for old, ref in ((other, logps.detach()), (logps.detach(), other), (other, other)):
        loss, metrics = policy_loss(logps, old, ref, advantages, mask, loss_type=loss_type)
        (gradient,) = torch.autograd.grad(loss, logps)
        assert loss.isfinite() and (gradient**2).sum().isfinite()
        assert all(value.isfinite() for value in metrics.values())


# --- PPO -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_ppo_policy_loss_is_the_symmetric_clip_plus_kl(batch, aggregation):
    over = {"loss_aggregation": aggregation, "max_completion_length": LIMIT}
    expected = run(batch, loss_type="grpo", beta=0.02, epsilon=0.2, **over)
    loss, gradient, metrics = run(batch, ppo_policy_loss, clip_epsilon=0.2, kl_coef=0.02, **over)
    torch.testing.assert_close(loss, expected[0])
    torch.testing.assert_close(gradient, expected[1])
    assert metrics["policy_loss"] < loss


def test_value_loss_agrees_with_a_loop(batch):
    values, old, returns = batch.logps, batch.old_logps, batch.ref_logps
    terms, clipped = [], 0
    for v, v_old, ret, valid in zip(*(x.flatten().tolist() for x in (values, old, returns, batch.mask)), strict=True):
        if valid:
            near = min(max(v, v_old - 0.3), v_old + 0.3)
            terms.append(0.5 * max((v - ret) ** 2, (near - ret) ** 2))
            clipped += (near - ret) ** 2 > (v - ret) ** 2
    loss, metrics = value_loss(values, old, returns, batch.mask, cliprange_value=0.3)
    assert loss.item() == pytest.approx(sum(terms) / len(terms), rel=1e-12)
    assert metrics["value_clip_fraction"].item() == pytest.approx(clipped / len(terms))
    assert metrics["num_tokens"].item() == len(terms)
    assert 0 < clipped < len(terms)


def test_a_value_that_has_moved_far_enough_gets_no_gradient():
    values = torch.tensor([[1.0, 1.0]], requires_grad=True)
    old = torch.tensor([[0.5, 0.5]])
    # Towards the target 2 it has gone beyond 0.7 already; away from the target 0 it must still come back.
    value_loss(values, old, torch.tensor([[2.0, 0.0]]), torch.ones(1, 2), cliprange_value=0.2)[0].backward()
    assert values.grad.tolist() == [[0.0, 0.5]]


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_losses_of_micro_batches_add_up(batch, size, aggregation):
    denominator = loss_denominator(batch.mask, aggregation, LIMIT)
    over = {"loss_aggregation": aggregation, "denominator": denominator}
    pieces = [[x[start : start + size] for x in vars(batch).values()] for start in range(0, len(batch.mask), size)]
    for whole_loss in (policy_loss, ppo_policy_loss):
        whole = run(batch, whole_loss, **over)
        parts = [whole_loss(*piece, **over) for piece in pieces]
        loss = sum(part[0] for part in parts)
        torch.testing.assert_close(loss, whole[0], rtol=1e-12, atol=1e-12)
        (gradient,) = torch.autograd.grad(loss, batch.logps)
        torch.testing.assert_close(gradient, whole[1], rtol=1e-12, atol=1e-12)
        tokens = sum(part[1]["num_tokens"] for part in parts)
        kl = sum(part[1]["kl_ref"] * part[1]["num_tokens"] for part in parts) / tokens
        torch.testing.assert_close(kl, whole[2]["kl_ref"], rtol=1e-12, atol=1e-12)
    value = value_loss(batch.logps, batch.old_logps, batch.ref_logps, batch.mask, **over)[0]
    parts = [value_loss(*piece[:3], piece[4], **over)[0] for piece in pieces]
    torch.testing.assert_close(sum(parts), value, rtol=1e-12, atol=1e-12)


def test_explained_variance_by_hand():
    returns = torch.tensor([[1.0, 2.0, 3.0, NAN]])
    mask = torch.tensor([[1, 1, 1, 0]])
    assert explained_variance(returns, returns, mask) == 1
    assert explained_variance(torch.full_like(returns, 5.0), returns, mask) == 0
    # The errors 2, 4, 6 have four times the variance of the returns.
    assert explained_variance(-returns, returns, mask).item() == pytest.approx(1 - 4)
    # Returns that do not vary: matched up to a constant, or not.
    level = torch.full((1, 6), 0.1)
    assert explained_variance(level + 1, level, torch.ones(1, 6)) == 1
    assert explained_variance(torch.arange(6.0)[None], level, torch.ones(1, 6)) == 0
