# SPDX-License-Identifier: Apache-2.0
"""What a pass over several tokens costs on this machine, measured once, and how many tokens of drafts pay for it."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from math import inf
from statistics import median
from typing import Any

import torch
from torch import Tensor

from .decoder import Decoder
from .guesses import Index, Rates, Text

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)  # whose steps are measured; others lie between them
# Tokens of a pass with drafts. There are no others: a product of a new size is compiled first, which takes as long as
# some tokens do, and what sizes cost goes up in stairs.
SIZES = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48, 64, 96, 128)
MOST_TOKENS = 8  # of a row, at any time of measuring
FEW_ROWS = 4  # that are measured in any case
_SWEEPS, _REPEATS = 2, 3
_MARGIN = 1.02  # gain below which drafts are left alone


@dataclass
class PassCosts:
    """Seconds of passes, drawing included.

    Args:
        steps (`dict[int, float]`): With one token for each row, by some of `ROWS` rows.
        blocks (`dict[int, float]`): With several tokens for each row, by some of `SIZES` tokens.
        guess (`float`): Seconds of guessing one token, and of learning from it.
    """

    steps: dict[int, float]
    blocks: dict[int, float]
    guess: float

    def __post_init__(self):
        self._ratios: dict[int, dict[int, float]] = {}

    @classmethod
    def measure(
        cls,
        make_decoder: Callable[[int], Decoder],
        prompt_ids: Sequence[int],
        draw: Callable[[Tensor], Any],
        most_rows: int,
    ) -> "PassCosts":
        """Times a decoder after one prompt.

        Args:
            make_decoder (`Callable`): Returns a new one, for up to so many rows of `MOST_TOKENS` tokens.
            draw (`Callable`): Draws from logits.
            most_rows (`int`): Rows for which there is memory; passes of more are not measured.
        """
        most_rows, token = max(most_rows, FEW_ROWS), prompt_ids[0]
        steps = {rows: inf for rows in ROWS if rows <= most_rows}
        blocks = {size: inf for size in SIZES if len(_uneven(size)) <= most_rows}
        of_blocks = {size: len(_uneven(size)) for size in blocks}
        for _ in range(_SWEEPS):  # apart in time, as other work on a machine comes and goes
            for rows, decoder in _narrowing(make_decoder, prompt_ids, {rows: rows for rows in steps}):
                ids = torch.full((rows,), token, device=decoder.device)
                steps[rows] = min(steps[rows], _typical(partial(decoder.step, ids), draw))
                decoder.cut([_REPEATS] * rows)
            for size, decoder in _narrowing(make_decoder, prompt_ids, of_blocks):
                ids = [[token] * count for count in _uneven(size)]
                undo = partial(decoder.cut, _uneven(size))
                blocks[size] = min(blocks[size], _typical(partial(decoder.append, ids), draw, undo))
        return cls(steps, blocks, _guessing_seconds())

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def seconds(self, rows: int, drafted: int) -> float:
        """Of one pass over this many rows, and as many tokens of drafts as [`choose`] may return."""
        return self.blocks[rows + drafted] if drafted else _between(self.steps, rows)

    def ratios(self, rows: int) -> dict[int, float]:
        """How many steps a pass costs, by the tokens of drafts in it."""
        if rows not in self._ratios:
            step = self.seconds(rows, 0)
            self._ratios[rows] = {size - rows: block / step for size, block in self.blocks.items() if size > rows}
        return self._ratios[rows]

    def without_drafts(self, steps: Sequence[int], slots: int) -> float:
        """Seconds of decoding rows of so many steps, in their order and so many at a time."""
        waiting, running, now, seconds = list(reversed(steps)), [], 0, 0.0
        while waiting or running:
            while waiting and len(running) < slots:
                heappush(running, now + waiting.pop())
            seconds += (running[0] - now) * self.seconds(len(running), 0)
            now = heappop(running)
        return seconds

    def least(self, rows: int) -> float:
        """The least probability of being right that a token of a draft needs, if all of a pass have the same."""
        needed = (rows * (_MARGIN * ratio - 1) / drafted for drafted, ratio in self.ratios(rows).items())
        return min(needed, default=inf)

    def choose(self, rows: int, probabilities: Sequence[Sequence[float]]) -> list[int]:
        """Returns how many tokens of each draft pay: those that make tokens per second highest.

        Args:
            rows (`int`): Of the batch.
            probabilities (`Sequence[Sequence[float]]`): Of each token of each draft, falling; times what it is worth.
        """
        ranked = sorted((-probability, row) for row, chain in enumerate(probabilities) for probability in chain)
        expected = list(accumulate((-negative for negative, _ in ranked), initial=float(rows)))
        best, chosen = rows * _MARGIN, 0
        for drafted, ratio in self.ratios(rows).items():
            if drafted < len(expected) and expected[drafted] / ratio > best:
                best, chosen = expected[drafted] / ratio, drafted
        counts = [0] * len(probabilities)
        for _, row in ranked[:chosen]:
            counts[row] += 1
        return counts


def _narrowing(
    make_decoder: Callable[[int], Decoder], prompt_ids: Sequence[int], rows: dict[int, int]
) -> Iterator[tuple[int, Decoder]]:
    """One decoder after a prompt, with as many rows as `rows` says for each size, the largest first."""
    most = max(rows.values())
    decoder = make_decoder(most)
    decoder.prefill([prompt_ids])
    decoder.start_rows([0] * most)
    for size in sorted(rows, reverse=True):
        decoder.reorder(range(rows[size]))
        yield size, decoder


def _typical(
    work: Callable[[], Tensor], draw: Callable[[Tensor], Any], undo: Callable[[], None] = lambda: None
) -> float:
    seconds = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        draw(work())[0].tolist()
        seconds.append(time.perf_counter() - start)
        undo()
    return _rounded(median(seconds))


def _uneven(size: int) -> list[int]:
    """So many tokens in rows of one and of seven, as drafts of few rows are uneven."""
    return [1, 7] * (size // 8) + ([size % 8] if size % 8 else [])


def _between(seconds: dict[int, float], size: int) -> float:
    """Linear between what was measured, and beyond it."""
    low, high = next((pair for pair in pairwise(seconds) if size <= pair[1]), list(seconds)[-2:])
    share = (size - low) / (high - low)
    return seconds[low] * (1 - share) + seconds[high] * share


def _guessing_seconds(tokens: int = 500) -> float:
    text, rates = Text(Index(), [0]), Rates()
    start = time.perf_counter()
    for number in range(tokens):
        text.continued(1, 0.0, rates)
        text.add(number % 50, rates)
    return _rounded((time.perf_counter() - start) / tokens)


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.2g}")
