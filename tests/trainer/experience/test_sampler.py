# SPDX-License-Identifier: Apache-2.0
"""The order of the prompts, to the last number: runs of before are continued in it."""

import pytest
import torch
from naming import raises_naming

from minimind_hf.trainer.experience.sampler import RolloutSampler


def expected_order(num_prompts: int, chunk_size: int, repeats: int, shuffle: bool, seed: int, epoch: int) -> list[int]:
    """The rule, written out: a permutation by the seed of the epoch, cut into chunks, each of them repeated."""
    order = list(range(num_prompts))
    if shuffle:
        order = torch.randperm(num_prompts, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
    drawn = []
    for start in range(0, num_prompts - chunk_size + 1, chunk_size):
        drawn += order[start : start + chunk_size] * repeats
    return drawn


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(
    ("num_prompts", "chunk_size", "repeats"), [(1, 1, 1), (7, 3, 4), (8, 8, 2), (12, 4, 1), (1000, 7, 3), (9, 5, 6)]
)
def test_the_order_is_a_function_of_seed_and_epoch(num_prompts, chunk_size, repeats, shuffle):
    shape = (num_prompts, chunk_size, repeats, shuffle)
    for seed in (0, 42):
        sampler = RolloutSampler(*shape, seed)
        for epoch in (0, 1, 2, 5, 1):  # a resumed run begins anywhere
            sampler.set_epoch(epoch)
            expected = expected_order(*shape, seed, epoch)
            assert list(sampler) == expected and len(sampler) == len(expected)
            assert list(sampler) == expected  # however often it is asked


def test_iterators_do_not_disturb_each_other_or_the_global_random_state():
    sampler = RolloutSampler(20, 4, 2, True, 3)
    before = torch.get_rng_state()
    first, second = iter(sampler), iter(sampler)
    assert list(zip(first, second, strict=True)) == [(number, number) for number in sampler]
    assert torch.equal(torch.get_rng_state(), before)


def test_too_few_prompts_for_one_rollout_are_refused():
    with raises_naming(ValueError, 3, 4, "per_device_train_batch_size"):
        RolloutSampler(3, 4, 1, True, 0)
