# SPDX-License-Identifier: Apache-2.0
"""One loss from per-token losses: by hand, by a loop, and the same for every shape of the micro-batches."""

import pytest
import torch
from naming import raises_naming

from minimind_hf.algorithms import aggregate, loss_denominator

NAN = float("nan")
AGGREGATIONS = ["sequence", "token", "constant", "sequence_sum"]
LIMIT = 10

PER_TOKEN = [[1.0, 2.0, 3.0], [5.0, NAN, NAN], [NAN, NAN, NAN]]
MASK = [[1, 1, 1], [1, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    "how, expected, denominator",
    [
        ("sequence_sum", (6.0 + 5.0) / 2, 2),
        ("sequence", (2.0 + 5.0) / 2, 2),  # the row without a valid token is no sequence
        ("token", 11.0 / 4, 4),
        ("constant", 11.0 / 20, 20),
        ("local_token", 11.0 / 4, 1),
    ],
)
def test_by_hand(how, expected, denominator, dtype):
    per_token, mask = torch.tensor(PER_TOKEN, dtype=dtype), torch.tensor(MASK)
    loss = aggregate(per_token, mask, how, max_completion_length=LIMIT)
    assert loss.dtype == dtype
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    assert loss_denominator(mask, how, LIMIT).item() == denominator
    # A denominator of another dtype does not change that of the loss.
    given = torch.tensor(float(denominator), dtype=torch.float64)
    assert aggregate(per_token, mask, how, given).dtype == dtype


def loop_aggregate(per_token, mask, how):
    rows = [[x for x, m in zip(*pair, strict=True) if m] for pair in zip(per_token, mask, strict=True)]
    rows = [row for row in rows if row]
    if how == "sequence":
        return sum(sum(row) / len(row) for row in rows) / len(rows)
    total = sum(sum(row) for row in rows)
    if how == "sequence_sum":
        return total / len(rows)
    return total / (sum(map(len, rows)) if how == "token" else len(rows) * LIMIT)


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_agrees_with_a_loop(how, batch):
    expected = loop_aggregate(batch.logps.tolist(), batch.mask.tolist(), how)
    loss = aggregate(batch.logps, batch.mask, how, max_completion_length=LIMIT)
    assert loss.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("how", AGGREGATIONS)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_micro_batches_add_up_to_the_whole_batch(how, size, batch):
    whole = aggregate(batch.logps**2, batch.mask, how, max_completion_length=LIMIT)
    (whole_gradient,) = torch.autograd.grad(whole, batch.logps)

    masks = batch.mask.split(size)
    denominator = sum(loss_denominator(mask, how, LIMIT) for mask in masks)
    parts = []
    for rows, mask in zip(batch.logps.split(size), masks, strict=True):
        # A micro-batch is only as wide as its longest row.
        width = max(int(mask.sum(dim=0).nonzero().max()) + 1, 1) if mask.any() else 1
        parts.append(aggregate(rows[:, :width] ** 2, mask[:, :width], how, denominator))
    (gradient,) = torch.autograd.grad(sum(parts), batch.logps)
    torch.testing.assert_close(sum(parts), whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, whole_gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_a_denominator_shared_by_ranks_may_be_below_one(how):
    # Two ranks with one sequence of one token between them, gradients averaged: each divides by 1/2.
    loss = aggregate(torch.tensor([[3.0]]), torch.tensor([[1]]), how, denominator=0.5)
    assert loss.item() == 6


@pytest.mark.parametrize("how", AGGREGATIONS)
@pytest.mark.parametrize("denominator", [None, 0, torch.tensor(0)])
def test_nothing_valid_gives_zero_with_a_graph(how, denominator):
    per_token = torch.full((2, 3), NAN, requires_grad=True)
    loss = aggregate(per_token, torch.zeros(2, 3), how, denominator, max_completion_length=LIMIT)
    loss.backward()
    assert loss.item() == 0
    assert per_token.grad.tolist() == [[0.0] * 3] * 2


def test_what_cannot_be_computed_is_refused():
    with raises_naming(ValueError, "sequence", "token", "constant", "'median'"):
        aggregate(torch.ones(1, 1), torch.ones(1, 1), "median")
    with raises_naming(ValueError, "max_completion_length", None):
        loss_denominator(torch.ones(1, 1), "constant")
    with raises_naming(ValueError, "(4, 3)", "(1, 3)"):
        aggregate(torch.ones(4, 3), torch.ones(1, 3))
