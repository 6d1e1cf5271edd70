# SPDX-License-Identifier: Apache-2.0
"""Uniform numbers that are a function of what they are for: seed, completion and position.

A generator hands its numbers out in the order of asking, so that whoever asks first changes what all others get. Here
a number is a hash of its counter, as in SplitMix64 (Steele, Lea and Flood, 2014): which rows are decoded together, and
how long a tool takes, changes nothing. A few operations on 64-bit integers, on any device, and no state to save.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from ...forward.on_device import on_device

STRIDE = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: counters of one completion
# The mixing function: shift right, xor and multiply, twice; shift right and xor.
SHIFTS = (30, 27, 31)
FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
BITS = 53  # of a float64
BLOCK = 16


def stream(seed: int, completion: int) -> int:
    """Returns the counter before the first position of a completion."""
    return _mixed(_mixed(seed + STRIDE) + STRIDE * (completion + 1))


class Noise:
    """The next uniform number of each row. They are computed for several positions at a time.

    Args:
        device (`torch.device`): Where they are needed.

    Attributes:
        counters (`Tensor` of shape `(rows,)`): int64: what the next block of numbers is a hash of.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.strides = on_device([_signed(STRIDE * number) for number in range(BLOCK)], device)
        self.place([])

    def place(self, rows: Iterable[tuple[int, int]]) -> None:
        """Says which number each row needs next, by its [`stream`] and the position in its completion."""
        counters = [_signed(start + STRIDE * (position + 1)) for start, position in rows]
        self.counters = on_device(counters, self.device)
        self.block: list[Tensor] = []

    def draw(self) -> Tensor:
        """Returns float64 numbers of shape `(rows,)`, at least 0 and below 1, and moves every row by one position."""
        if not self.block:
            self.block = list(reversed(uniforms(self.counters[:, None] + self.strides).unbind(1)))
            advance(self.counters, BLOCK)
        return self.block.pop()

    def keep_in(self, buffer: Tensor) -> None:
        """Keeps the counters at the beginning of a buffer, from which somebody else may draw with [`uniforms`] and
        [`advance`]."""
        if self.block:
            advance(self.counters, -len(self.block))
            self.block = []
        own = buffer[: len(self.counters)]
        if own.data_ptr() != self.counters.data_ptr():
            self.counters = own.copy_(self.counters)


def uniforms(counters: Tensor) -> Tensor:
    """The numbers of some counters: float64, at least 0 and below 1."""
    return _shifted(_mix(counters), 64 - BITS).double().mul_(2.0**-BITS)


def advance(counters: Tensor, positions: int = 1) -> None:
    """Moves counters by some positions, in place."""
    counters += _signed(STRIDE * positions)


def _mix(numbers: Tensor) -> Tensor:
    for shift, factor in zip(SHIFTS, (*FACTORS, None), strict=True):
        numbers = _shifted(numbers, shift).bitwise_xor_(numbers)
        if factor is not None:
            numbers.mul_(_signed(factor))
    return numbers


def _shifted(numbers: Tensor, count: int) -> Tensor:
    """A shift to the right of unsigned numbers; that of signed ones repeats their sign."""
    return (numbers >> count).bitwise_and_((1 << (64 - count)) - 1)


def _mixed(number: int) -> int:
    number %= 2**64
    for shift, factor in zip(SHIFTS, (*FACTORS, 1), strict=True):
        number = (number ^ (number >> shift)) * factor % 2**64
    return number


def _signed(number: int) -> int:
    number %= 2**64
    return number - 2**64 if number >= 2**63 else number
