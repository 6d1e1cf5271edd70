# SPDX-License-Identifier: Apache-2.0
"""What a pass over several tokens costs on this machine, measured once, and how many tokens of drafts pay for it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from typing import Any

import torch
from torch import Tensor

from .decoder import Decoder
from .guesses import Index, Rates, Text

MOST_DRAFTED = 96  # tokens of drafts in a pass
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)  # that are measured, and lie between them
_REPEATS = 5
MOST_TOKENS = 8  # of a row, at any time of measuring
MOST_MEASURED = _SIZES[-1]
_TOKENS_PER_ROW = 4  # in a pass that is measured
_MARGIN = 1.02  # gain below which drafts are left alone


@dataclass
class PassCosts:
    """Seconds of passes, drawing included.

    Args:
        steps (`list[float]`): With one token for each row, for `_SIZES` rows.
        blocks (`list[float]`): With several tokens for each row, for `_SIZES` tokens.
        guess (`float`): Seconds of guessing one token, and of learning from it.
    """

    steps: list[float]
    blocks: list[float]
    guess: float

    def __post_init__(self):
        self._ratios: dict[int, list[float]] = {}

    @classmethod
    def measure(
        cls, make_decoder: Callable[[], Decoder], prompt_ids: Sequence[int], draw: Callable[[Tensor], Any]
    ) -> "PassCosts":
        """Times a decoder after one prompt.

        Args:
            make_decoder (`Callable`): Returns a new one, for up to `MOST_MEASURED` rows of `MOST_TOKENS` tokens.
            draw (`Callable`): Draws from logits.
        """

        def best(rows: int, work: Callable[[Decoder], Tensor], undone: int) -> float:
            decoder = make_decoder()
            decoder.prefill([prompt_ids])
            decoder.start_rows([0] * rows)
            seconds = []
            for _ in range(_REPEATS):
                start = time.perf_counter()
                draw(work(decoder))[0].tolist()
                seconds.append(time.perf_counter() - start)
                if undone:
                    decoder.cut([undone] * rows)
            return _rounded(min(seconds))

        token = prompt_ids[0]
        steps, blocks = [], []
        for size in _SIZES:
            ids = torch.full((size,), token)
            steps.append(best(size, lambda decoder, ids=ids: decoder.step(ids.to(decoder.device)), 0))
            rows = -(-size // _TOKENS_PER_ROW)
            ids = [[token] * (size // rows)] * rows
            blocks.append(best(rows, lambda decoder, ids=ids: decoder.append(ids), len(ids[0])))
        return cls(_rising(steps), _rising(blocks), _guessing_seconds())

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def seconds(self, rows: int, drafted: int) -> float:
        """Of one pass over this many rows, and tokens of drafts."""
        return _between(self.blocks, rows + drafted) if drafted else _between(self.steps, rows)

    def ratios(self, rows: int) -> list[float]:
        """How many steps a pass costs, by the tokens of drafts in it."""
        if rows not in self._ratios:
            step = self.seconds(rows, 0)
            self._ratios[rows] = [self.seconds(rows, drafted) / step for drafted in range(MOST_DRAFTED + 1)]
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
        return min(
            rows * (_MARGIN * ratio - 1) / drafted for drafted, ratio in enumerate(self.ratios(rows)) if drafted
        )

    def choose(self, rows: int, probabilities: Sequence[Sequence[float]]) -> list[int]:
        """Returns how many tokens of each draft pay: those that make tokens per second highest.

        Args:
            rows (`int`): Of the batch.
            probabilities (`Sequence[Sequence[float]]`): Of each token of each draft, falling; times what it is worth.
        """
        ratios, counts = self.ratios(rows), [0] * len(probabilities)
        ranked = sorted(
            ((-probability, row) for row, chain in enumerate(probabilities) for probability in chain),
        )[:MOST_DRAFTED]
        expected, best, chosen = float(rows), rows * _MARGIN, 0
        for drafted, (negative, _) in enumerate(ranked, start=1):
            expected -= negative
            if expected / ratios[drafted] > best:
                best, chosen = expected / ratios[drafted], drafted
        for _, row in ranked[:chosen]:
            counts[row] += 1
        return counts


def _between(seconds: Sequence[float], size: int) -> float:
    """Linear between what was measured, and beyond it."""
    place = next((i for i, end in enumerate(_SIZES[1:], start=1) if size <= end), len(_SIZES) - 1)
    low, high = _SIZES[place - 1], _SIZES[place]
    share = (size - low) / (high - low)
    return seconds[place - 1] * (1 - share) + seconds[place] * share


def _rising(seconds: list[float]) -> list[float]:
    """No pass is cheaper than a smaller one: where it seems so, the smaller was measured badly."""
    for place in range(len(seconds) - 2, -1, -1):
        seconds[place] = min(seconds[place : place + 2])
    return seconds


def _guessing_seconds(tokens: int = 500) -> float:
    text, rates = Text(Index(), [0]), Rates()
    start = time.perf_counter()
    for number in range(tokens):
        text.continued(1, 0.0, rates)
        text.add(number % 50, rates)
    return _rounded((time.perf_counter() - start) / tokens)


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.2g}")
