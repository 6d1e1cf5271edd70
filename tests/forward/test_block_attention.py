# SPDX-License-Identifier: Apache-2.0
"""Attention in blocks against torch's fused attention, forward and backward."""

import pytest
import torch

from minimind_hf.forward import block_attention, long_attention, shared_prompt
from minimind_hf.forward.row_layout import RowLayout

GROUPS = {
    "even": [(7, [5, 5, 5]), (3, [4])],
    "ragged": [(7, [5, 1, 12, 6]), (1, [2, 3])],
    "no completions": [(6, []), (2, [1])],
    "long completions": [(9, [40, 17, 33]), (30, [8, 8, 20])],
}


def states_of(groups, dtype, heads=4, kv_heads=2, dim=8, value_dim=None):
    total = sum(prompt + sum(lengths) for prompt, lengths in groups)
    torch.manual_seed(0)
    value_dim = value_dim or dim
    shapes = [(1, total, *shape) for shape in ((heads, dim), (kv_heads, dim), (kv_heads, value_dim))]
    # As transformers hands them over: views with the heads behind the tokens.
    states = [torch.randn(shape, dtype=torch.float64).to(dtype).transpose(1, 2) for shape in shapes]
    grad = torch.randn(1, heads, total, value_dim, dtype=torch.float64).to(dtype)
    return [each.requires_grad_() for each in states], grad


def both_ways(groups, dtype, **shape):
    layout = RowLayout.of(groups, torch.device("cpu"))
    states, grad = states_of(groups, dtype, **shape)
    results = []
    for attend in (
        lambda: shared_prompt._in_blocks(*states, layout.groups, 0.3),
        lambda: shared_prompt._by_group(*states, layout, None, {"scale": 0.3}),
    ):
        output = attend()
        results.append([output, *torch.autograd.grad(output, states, grad)])
    return results


@pytest.fixture(params=[(128, 2**20), (8, 2**20), (8, 1)], ids=["whole", "blocks", "small blocks, one by one"])
def block_sizes(request, monkeypatch):
    length, weights = request.param
    monkeypatch.setattr(block_attention, "LONG_SEQUENCE", length)
    monkeypatch.setattr(long_attention, "QUERIES_PER_BLOCK", length)
    monkeypatch.setattr(block_attention, "MAX_WEIGHTS", weights)


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("heads", [(4, 2), (4, 4), (6, 1)], ids=str)
def test_equal_to_fused_attention(groups, heads, block_sizes):
    in_blocks, fused = both_ways(groups, torch.float64, heads=heads[0], kv_heads=heads[1])
    for mine, expected in zip(in_blocks, fused, strict=True):
        torch.testing.assert_close(mine, expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("value_dim", [4, 12])
def test_values_of_another_width_than_queries(groups, value_dim, block_sizes):
    """As those of DeepSeek-V2 and V3."""
    in_blocks, fused = both_ways(groups, torch.float64, value_dim=value_dim)
    assert in_blocks[0].shape[-1] == value_dim
    for mine, expected in zip(in_blocks, fused, strict=True):
        torch.testing.assert_close(mine, expected, atol=1e-9, rtol=0)


def test_float32_by_onednn(block_sizes):
    in_blocks, fused = both_ways(GROUPS["ragged"], torch.float32)
    for mine, expected in zip(in_blocks, fused, strict=True):
        torch.testing.assert_close(mine, expected, atol=1e-5, rtol=0)


def test_bfloat16_is_as_exact_as_fused_attention():
    exact, _ = both_ways(GROUPS["long completions"], torch.float64)
    in_blocks, fused = both_ways(GROUPS["long completions"], torch.bfloat16)
    for truth, mine, theirs in zip(exact, in_blocks, fused, strict=True):
        assert mine.dtype == torch.bfloat16
        assert (mine - truth).abs().mean() < 1.2 * (theirs - truth).abs().mean()


def test_under_autocast_it_computes_in_its_dtype():
    layout = RowLayout.of([(7, [5, 3])], torch.device("cpu"))
    (query, key, value), _ = states_of([(7, [5, 3])], torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = shared_prompt._in_blocks(query, key, value, layout.groups, None)
        fused = shared_prompt._by_group(query, key, value, layout, None, {"scale": None})
    assert output.dtype == fused.dtype == torch.bfloat16
    torch.testing.assert_close(output, fused, atol=3e-2, rtol=0)
    output.float().sum().backward()
    assert all(states.grad.dtype == torch.float32 for states in (query, key, value))


def test_every_token_is_in_one_span():
    lengths = [300, 5, 130, 7, 6, 1]
    everything = [range(length) for length in (200, *lengths)]
    spans = block_attention.group_spans(
        slice(10, 210), lengths, everything, query_start=0, heads=4, device=torch.device("cpu")
    )
    positions = torch.arange(10 + 200 + sum(lengths))
    filled = [getattr(span, "filled", None) for span in spans]
    seen = [
        positions[span.tokens] if own is None else span.tokens[own] for span, own in zip(spans, filled, strict=True)
    ]
    assert sorted(torch.cat(seen).tolist()) == list(range(10, len(positions)))


def test_only_long_contexts_on_a_cpu_take_this_way():
    query = torch.zeros(1)
    assert block_attention.pays_off(query, 2000)
    assert not block_attention.pays_off(query, 256)
    assert block_attention.pays_off(query.bfloat16(), 256)
    with torch.autocast("cpu", torch.bfloat16):
        assert block_attention.pays_off(query, 256)
    assert not block_attention.pays_off(query.bfloat16(), 100)
    assert not block_attention.pays_off(query.to("meta"), 2000)
