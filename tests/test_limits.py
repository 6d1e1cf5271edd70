# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks count as the least work of a step: by hand, and against torch's own count."""

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from tiny import make_policy, random_ids
from torch.utils.flop_counter import FlopCounterMode

from minimind_hf.forward.layouts import score_completions
from minimind_hf.forward.token_batch import TokenBatch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from limits import (  # noqa: E402
    Machine,
    Product,
    Shape,
    Work,
    backward_work,
    decode_rows,
    forward_work,
    prefill_work,
    shape_of,
)

ONE_LAYER = Shape(Counter({(2, 3): 2, (5, 7): 1}), (2, 11), 6)


def test_a_forward_pass_by_hand():
    # A prompt of 4 tokens with completions of 3 and 1: 4 + 2 + 0 tokens in the layers, 3 + 1 in the head.
    work = forward_work(ONE_LAYER, [4], [[3, 1]])
    assert work.products == {Product(6, 2, 3): 2, Product(6, 5, 7): 1, Product(4, 2, 11): 1}
    # Pairs: 1 + 2 + 3 + 4 in the prompt; 5 + 6 of the two tokens behind it. Two products of 2 operations per pair.
    assert work.attention == 4 * 6 * (10 + 11)
    assert work.flops == 2 * 6 * (2 * 3 * 2 + 5 * 7) + 2 * 4 * 2 * 11 + work.attention
    assert backward_work(work).flops == 2 * work.flops


def test_decoding_by_hand():
    assert decode_rows([3, 1, 4]) == [2, 2, 1]
    assert decode_rows([1]) == [] == decode_rows([])
    assert ONE_LAYER.weights == 2 * 6 + 35 + 22
    assert prefill_work(ONE_LAYER, [4, 2]).products[Product(2, 2, 11)] == 1


def counted(run) -> tuple[int, int]:
    """Operations with weights and those of attention, by torch's count."""
    with FlopCounterMode(display=False) as counter:
        run()
    counts = counter.get_flop_counts()["Global"]
    names = {operation: str(operation) for operation in counts}
    products = sum(
        count for operation, count in counts.items() if "mm" in names[operation] and "bmm" not in names[operation]
    )
    return products, sum(counts.values()) - products


@pytest.mark.parametrize("backward", [False, True])
def test_products_are_those_of_torchs_count(backward):
    model = make_policy(attn_implementation="eager")
    ids = torch.tensor(random_ids(1, low=9, high=9))

    def run():
        logits = model(input_ids=ids).logits
        if backward:
            logits.sum().backward()

    work = forward_work(shape_of(model), [1], [[9]])  # 9 tokens with logits; the last one is an input here as well
    products, attention = counted(run)
    times = 3 if backward else 1
    assert products == times * sum(2 * 9 * p.inner * p.outer * count for p, count in work.products.items())
    assert attention == times * 4 * shape_of(model).attention_width * 9 * 9  # torch computes all pairs


def test_our_layout_multiplies_each_prompt_once():
    model = make_policy()
    prompts, completions = random_ids(2, seed=1), random_ids(6, seed=2)
    batch = TokenBatch(
        prompt_ids=[prompts[i // 3] for i in range(6)],
        completion_ids=completions,
        group_ids=[i // 3 for i in range(6)],
        device=torch.device("cpu"),
    )
    with torch.no_grad():
        products, _ = counted(lambda: score_completions(model, batch, 0.8, "shared_prompt"))
    groups = [[len(ids) for ids in completions[start : start + 3]] for start in (0, 3)]
    work = forward_work(shape_of(model), [len(ids) for ids in prompts], groups)
    least = sum(product.flops * count for product, count in work.products.items())
    last_tokens = 6 * sum(2 * inner * outer * count for (inner, outer), count in shape_of(model).layers.items())
    assert least <= products <= least + last_tokens


def test_limits_add_up(monkeypatch):
    machine = Machine(torch.float32, repeats=1)
    monkeypatch.setattr(machine, "seconds_of", lambda product, backward: product.rows * (2.0 if backward else 1.0))
    machine.bytes_per_second = 4.0
    work = Work(Counter({Product(3, 1, 1): 2}), attention=6)
    # 2 products of 3 s and 6 operations each; attention is half as many operations more
    assert machine.seconds(work) == 6 * 1.5 and machine.seconds(work, backward=True) == 12 * 1.5
    shape = Shape(Counter({(1, 1): 4}), (1, 1), 1)
    # 5 weights of 4 bytes take 5 s to read; 5 products take 2 s per row: 10 of 2 rows, 5 of 1 row
    assert machine.decode_seconds(shape, [3, 2]) == 10.0 + 5.0


def test_a_machine_is_measured():
    machine = Machine(torch.float32, repeats=2)
    assert 0 < machine.seconds_of(Product(64, 64, 64), True) < 1
    assert machine.bytes_per_second > 1e8
