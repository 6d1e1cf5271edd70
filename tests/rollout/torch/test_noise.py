# SPDX-License-Identifier: Apache-2.0
"""Uniform numbers by seed, completion and position.

The numbers are fixed, so these tests pass always or never. Truly random numbers would fail any of them with odds of
less than 1e-6.
"""

import itertools

import pytest
import torch

from minimind_hf.rollout.torch.noise import Noise, advance, stream, uniforms


def numbers(seeds, completions, positions) -> torch.Tensor:
    """Shape `(seeds, completions, positions)`."""
    noise = Noise(torch.device("cpu"))
    noise.place((stream(seed, completion), 0) for seed in seeds for completion in completions)
    drawn = torch.stack([noise.draw() for _ in range(positions)], dim=1)
    return drawn.view(len(seeds), len(completions), positions)


AXES = {
    "positions": ([0], [0], 50_000),
    "completions": ([0], range(200_000), 1),
    "seeds": (range(200_000), [0], 1),
    "a request": ([42], range(256), 512),
}


@pytest.mark.parametrize("axis", AXES)
def test_moments_and_frequencies(axis):
    drawn = numbers(*AXES[axis]).flatten()
    count = len(drawn)
    assert drawn.dtype == torch.float64 and drawn.min() >= 0 and drawn.max() < 1
    for power in (1, 2, 3, 4):  # of a uniform number: mean 1 / (k + 1), variance 1 / (2k + 1) - 1 / (k + 1)^2
        deviation = (1 / (2 * power + 1) - 1 / (power + 1) ** 2) ** 0.5 / count**0.5
        assert abs(drawn.pow(power).mean() - 1 / (power + 1)) < 6 * deviation
    # Chi-square of 256 cells: mean 255, standard deviation 22.6.
    cells = torch.bincount((drawn * 256).long(), minlength=256)
    assert abs(((cells - count / 256) ** 2 / (count / 256)).sum() - 255) < 7 * 22.6


@pytest.mark.parametrize("axis", AXES)
def test_neighbors_are_independent(axis):
    drawn = numbers(*AXES[axis]).flatten()
    pairs = ((drawn[:-1] * 16).long() * 16 + (drawn[1:] * 16).long()).bincount(minlength=256)
    expected = (len(drawn) - 1) / 256
    assert abs(((pairs - expected) ** 2 / expected).sum() - 255) < 7 * 22.6
    centered = drawn - 0.5
    for lag in (1, 2, 3, 64):  # of independent numbers: standard deviation 1 / sqrt(n)
        correlation = (centered[:-lag] * centered[lag:]).mean() * 12
        assert abs(correlation) < 6 / len(drawn) ** 0.5


def test_seeds_completions_and_positions_do_not_share_numbers():
    drawn = numbers(range(20), range(20), 50)
    assert len(drawn.flatten().unique()) == 20 * 20 * 50
    # A completion is not another one that began earlier: rows against rows, at all shifts.
    rows = drawn.view(400, 50) - 0.5
    for first, second in itertools.pairwise(rows):
        assert abs((first * second).mean() * 12) < 6 / 50**0.5


def test_all_bits_are_used():
    bits = (numbers([0], [0], 10_000).flatten() * 2**53).long()
    for place in range(53):
        share = (bits >> place & 1).double().mean()
        assert abs(share - 0.5) < 6 * 0.5 / 100


def test_a_number_is_a_function_of_its_place():
    noise = Noise(torch.device("cpu"))
    whole = numbers([7], range(5), 30)[0]
    for completion, position in [(0, 0), (3, 12), (4, 29), (1, 1)]:
        noise.place([(stream(7, 2), 5), (stream(7, completion), position)])
        assert noise.draw()[1] == whole[completion, position]


def test_the_known_numbers_of_splitmix64():
    # The published generator, seeded with 1234567, begins with these.
    noise = Noise(torch.device("cpu"))
    noise.place([(1234567, 0)])
    first = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert [noise.draw().item() for _ in first] == [(number >> 11) / 2**53 for number in first]
    assert 0 <= stream(-1, 0) < 2**64


def test_somebody_else_may_draw_from_the_counters():
    # As a captured step does: one position at a time, from a buffer with room for more rows.
    whole, buffer = numbers([7], range(3), 40)[0], torch.zeros(4, dtype=torch.long)
    noise = Noise(torch.device("cpu"))
    noise.place((stream(7, completion), 2) for completion in range(3))
    found = [noise.draw() for _ in range(5)]
    noise.keep_in(buffer)
    for _ in range(20):
        found.append(uniforms(buffer)[:3])
        advance(buffer)
    found += [noise.draw() for _ in range(3)]
    noise.keep_in(buffer)
    found.append(uniforms(buffer)[:3])
    assert torch.equal(torch.stack(found, dim=1), whole[:, 2:31])
