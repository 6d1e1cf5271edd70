# SPDX-License-Identifier: Apache-2.0
"""FlexAttention in the shared-prompt layout: its mask against a loop, its blocks against torch's, attention against
the groups, forward and backward.
"""

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.nn.attention import flex_attention as torch_flex

from minimind_hf.forward import flex, shared_prompt
from minimind_hf.forward.row_layout import RowLayout

CPU = torch.device("cpu")
GROUPS = {
    "even": [(7, [5, 5, 5]), (3, [4])],
    "ragged": [(7, [5, 1, 12, 6]), (1, [2, 3])],
    "no completions": [(6, []), (2, [1])],
    "a completion without tokens": [(6, [3, 0, 2]), (2, [0])],
    "several blocks": [(150, [40, 170, 3]), (200, [90, 1])],
    "one token": [(1, [])],
}
WINDOWS = [None, 1, 4, 64]


def sees_by_loop(groups, window) -> torch.Tensor:
    """`(T, T)`, sequence by sequence from the definition."""
    total = sum(prompt + sum(lengths) for prompt, lengths in groups)
    sees, start = torch.zeros(total, total, dtype=torch.bool), 0
    for prompt, lengths in groups:
        sequences, begin = [list(range(start, start + prompt))], start + prompt
        for length in lengths:
            sequences.append(sequences[0] + list(range(begin, begin + length)))
            begin += length
        for tokens in sequences:
            for place, token in enumerate(tokens):
                first = 0 if window is None else max(0, place - window + 1)
                sees[token, tokens[first : place + 1]] = True
        start = begin
    return sees


def mask_of(groups, window) -> flex.FlexMask:
    return RowLayout.of(groups, CPU).flex(window)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_the_mask_function_is_the_definition(groups, window):
    mask = mask_of(groups, window)
    dense = torch_flex.create_mask(mask.block_mask.mask_mod, 1, 1, mask.length, mask.length, device="cpu")[0, 0]
    expected = sees_by_loop(groups, window)
    tokens = len(expected)
    assert torch.equal(dense[:tokens, :tokens], expected)
    # Padding sees itself, so that no row of scores is empty, and nothing sees padding.
    assert torch.equal(dense[tokens:], torch.eye(mask.length, dtype=torch.bool)[tokens:])
    assert not dense[:tokens, tokens:].any()


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_blocks_found_from_lengths_are_those_found_from_the_mask(groups, window, monkeypatch):
    monkeypatch.setattr(flex, "_ROWS_AT_ONCE", 1)  # block by block
    mask = mask_of(groups, window)
    expected = torch_flex.create_block_mask(mask.block_mask.mask_mod, None, None, mask.length, mask.length, "cpu")
    for name in ("kv", "full_kv", "q", "full_q"):
        for field in (f"{name}_num_blocks", f"{name}_indices"):
            assert torch.equal(getattr(mask.block_mask, field), getattr(expected, field)), field
    assert mask.block_mask.shape == expected.shape


def test_windows_hide_blocks_of_long_rows():
    groups = [(1000, [1000, 1000])]
    assert mask_of(groups, 100).block_mask.sparsity() > 2 * 100 / 3 > mask_of(groups, None).block_mask.sparsity()


def test_buckets():
    lengths = [1, 128, 129, 256, 257, 384, 385, 513, 768, 769, 1500, 4097]
    assert [flex.bucket(tokens) for tokens in lengths] == [
        128, 128, 256, 256, 384, 384, 512, 768, 768, 1024, 1536, 6144,
    ]  # fmt: skip
    for tokens in range(1, 3000, 7):
        assert tokens <= flex.bucket(tokens) <= max(128, 2 * tokens) and flex.bucket(tokens) % flex.BLOCK == 0


def states_of(groups, dtype, heads=4, kv_heads=2, dim=16, value_dim=16):
    total = sum(prompt + sum(lengths) for prompt, lengths in groups)
    torch.manual_seed(0)
    shapes = [(1, total, *shape) for shape in ((heads, dim), (kv_heads, dim), (kv_heads, value_dim))]
    states = [torch.randn(shape, dtype=torch.float64).to(dtype).transpose(1, 2) for shape in shapes]
    return [each.requires_grad_() for each in states], torch.randn(1, heads, total, value_dim).to(dtype)


@pytest.fixture
def backward_on_a_cpu(monkeypatch):
    """FlexAttention refuses gradients on a CPU, where its eager backward pass exists all the same."""
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *states: None)


@pytest.mark.usefixtures("backward_on_a_cpu")
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("groups", [GROUPS["ragged"], GROUPS["several blocks"]], ids=["ragged", "several blocks"])
@pytest.mark.parametrize("shape", [{}, {"kv_heads": 4}, {"kv_heads": 1, "value_dim": 32}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_attention_and_its_gradients_equal_those_by_group(groups, window, shape, dtype):
    layout = RowLayout.of(groups, CPU)
    states, grad = states_of(groups, dtype, **shape)
    results = []
    for attend in (
        lambda: flex.flex_row_attention(*states, layout.flex(window), 0.3),
        lambda: shared_prompt._by_group(*states, layout, window, {"scale": 0.3}),
    ):
        output = attend()
        results.append([output, *torch.autograd.grad(output, states, grad)])
    tolerance = 1e-9 if dtype == torch.float64 else 2e-5
    for mine, expected in zip(*results, strict=True):
        torch.testing.assert_close(mine, expected, atol=tolerance, rtol=0)


def test_under_autocast_it_computes_in_its_dtype():
    groups = GROUPS["ragged"]
    layout, (states, _) = RowLayout.of(groups, CPU), states_of(groups, torch.float32)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        output = flex.flex_row_attention(*states, layout.flex(None), None)
        by_group = shared_prompt._by_group(*states, layout, None, {"scale": None})
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output, by_group, atol=3e-2, rtol=0)


@pytest.mark.slow
def test_each_shape_compiles_once_however_many_there_are():
    """torch gives up compiling a function after eight shapes and says nothing; rows of a shape share a kernel,
    whatever their groups and windows."""
    flex.compiled.cache_clear()
    counter = CompileCounter()
    shapes = 0
    with torch.no_grad():
        for tokens in range(1, 12):
            groups = [[(128 * tokens - 9, [5])], [(100, [128 * tokens - 120, 3])]]
            layouts = [RowLayout.of(each, CPU) for each in groups[: 1 if tokens == 1 else 2]]
            for layout, window in [(layout, window) for layout in layouts for window in (None, 7)]:
                mask = layout.flex(window)
                states = [torch.randn(1, heads, mask.length, 16) for heads in (2, 1, 1)]
                key = tuple((*each.shape, each.dtype) for each in states)
                before = counter.frame_count
                flex.compiled(key, 0.3, False, counter)(*states, mask.block_mask, 0.3)
                shapes += counter.frame_count > before
    buckets = {flex.bucket(128 * tokens) for tokens in range(1, 12)}
    flex.compiled.cache_clear()
    assert counter.frame_count == shapes == len(buckets) > 5


def test_compiled_equals_eager():
    """By the compiler of devices, as far as a CPU has it: without a gradient."""
    groups = GROUPS["several blocks"]
    layout = RowLayout.of(groups, CPU)
    states = [each.detach() for each in states_of(groups, torch.float32)[0]]
    mask = layout.flex(64)
    padded = [torch.nn.functional.pad(each, (0, 0, 0, mask.length - each.shape[2])) for each in states]
    key = tuple((*each.shape, each.dtype) for each in padded)
    with torch.no_grad():
        found = flex.compiled(key, 0.3, False)(*padded, mask.block_mask, 0.3)[:, :, : states[0].shape[2]]
        expected = shared_prompt._by_group(*states, layout, 64, {"scale": 0.3})
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
