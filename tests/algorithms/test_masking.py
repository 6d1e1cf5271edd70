# SPDX-License-Identifier: Apache-2.0
"""Completion masks, and reductions that masked slots cannot reach."""

import pytest
import torch
from naming import raises_naming

from minimind_hf.algorithms import completion_mask, fill_masked, length_mask, masked_mean, masked_mean_var, masked_sum

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("eos", [2, [2], (2,), torch.tensor([2]), [2, 9999]])
def test_eos_ids_in_every_form(eos):
    mask = completion_mask(torch.tensor([[4, 2, 4], [4, 4, 4]]), eos)
    assert mask.tolist() == [[True, True, False], [True, True, True]]


def test_the_first_of_several_eos_ids_ends_the_completion():
    mask = completion_mask(torch.tensor([[5, 7, 3, 2], [5, 3, 7, 2]]), [7, 3])
    assert mask.long().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0]]


def test_a_sampled_padding_id_is_a_token_like_any_other():
    # 0 pads, and the model sampled it in the middle of its answer.
    mask = completion_mask(torch.tensor([[5, 0, 6, 2, 0, 0]]), 2)
    assert mask.long().tolist() == [[1, 1, 1, 1, 0, 0]]


def test_without_any_eos_id_every_token_counts():
    assert completion_mask(torch.tensor([[1, 2, 3]]), []).all()


def test_agrees_with_a_loop_over_the_tokens():
    ids = torch.randint(0, 6, (40, 12), generator=torch.Generator().manual_seed(0))
    expected = []
    for row in ids.tolist():
        ended, marks = False, []
        for token in row:
            marks.append(not ended)
            ended = ended or token in (1, 4)
        expected.append(marks)
    assert completion_mask(ids, [1, 4]).tolist() == expected


def test_length_mask():
    assert length_mask(torch.tensor([0, 2, 3]), 3).long().tolist() == [[0, 0, 0], [1, 1, 0], [1, 1, 1]]


@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.long, torch.float32])
def test_reductions(mask_dtype):
    x = torch.tensor([[1.0, 2.0, NAN], [6.0, INF, -INF]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]]).to(mask_dtype)
    assert masked_sum(x, mask).item() == 9
    assert masked_sum(x, mask, dim=1).tolist() == [3, 6]
    assert masked_mean(x, mask).item() == 3
    assert masked_mean(x, mask, dim=1).tolist() == [1.5, 6]
    mean, variance = masked_mean_var(x, mask)
    # ((1-3)^2 + (2-3)^2 + (6-3)^2) / 3
    assert mean.item() == 3 and variance.item() == pytest.approx(14 / 3)


@pytest.mark.parametrize("reduce", [masked_sum, masked_mean, lambda x, mask: masked_mean_var(x, mask)[1]])
def test_masked_slots_reach_neither_value_nor_gradient(reduce):
    mask = torch.tensor([1, 0, 1, 0, 1])
    clean = torch.tensor([1.0, 0.0, 2.0, 0.0, 4.0], requires_grad=True)
    spoiled = torch.tensor([1.0, NAN, 2.0, INF, 4.0], requires_grad=True)
    values = [reduce(x, mask) for x in (clean, spoiled)]
    for value in values:
        value.backward()
    assert values[0].item() == values[1].item()
    assert clean.grad.tolist() == spoiled.grad.tolist()
    assert clean.grad.abs().sum() > 0


def test_nothing_valid_is_zero_with_a_graph():
    x = torch.full((2, 3), NAN, requires_grad=True)
    masked_mean(x, torch.zeros(2, 3)).backward()
    assert x.grad.tolist() == [[0.0] * 3] * 2
    assert [moment.item() for moment in masked_mean_var(x, torch.zeros(2, 3))] == [0, 0]


def test_equal_values_have_variance_zero_exactly():
    # The plain float32 mean of 0.7 over 10007 slots is off by some 1e-8, which whitening would blow up by 1e4.
    x = torch.full((10007,), 0.7)
    mean, variance = masked_mean_var(x, torch.ones(10007))
    assert mean == x[0] and variance == 0


def test_a_mask_that_would_broadcast_is_refused():
    with raises_naming(ValueError, "(2, 3)", "(1, 3)"):
        fill_masked(torch.ones(2, 3), torch.ones(1, 3))
