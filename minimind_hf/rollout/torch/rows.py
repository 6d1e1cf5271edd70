# SPDX-License-Identifier: Apache-2.0
"""The rows of a batch: what each has drawn, and their order when some leave."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Row:
    """A running completion, or the running turn of an episode.

    Attributes:
        stream (`int`): Of its noise.
        room (`int`): Most tokens of the turn.
        before (`int`): Tokens of the completion before the turn.
        since (`int`): Draws of the batch before the turn's first token; less, if it drew several tokens at once.
        draft (`list[int]`): Tokens in the decoder after the last one that was drawn, which may be drawn next.
        finish_reason (`str`, *optional*): Set when the turn has ended.
        kept (`list[np.ndarray]`, *optional*): The sets that the tokens were drawn from, if sampling is truncated.
    """

    completion: int
    stream: int
    room: int
    before: int = 0
    since: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    draft: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    kept: list[np.ndarray] | None = None

    @property
    def length(self) -> int:
        return self.before + len(self.tokens)

    def take(
        self, ids: list[int], logprobs: list[float], kept: Sequence[np.ndarray] | None, ends: Collection[int]
    ) -> int:
        """Appends what was drawn, up to the end of the turn, and returns how many tokens that is."""
        taken = len(ids)
        for number, (token, logp) in enumerate(zip(ids, logprobs, strict=True), start=1):
            self.tokens.append(token)
            self.logprobs.append(logp)
            if token in ends:
                self.finish_reason = "stop"
            elif len(self.tokens) == self.room:
                self.finish_reason = "length"
            else:
                continue
            taken = number
            break
        if self.kept is not None:
            self.kept += kept[:taken]
        return taken


def without(count: int, gone: list[int]) -> list[int]:
    """The numbers below `count` that are not gone. The last ones fill the gaps, so that as few as possible move."""
    left = count - len(gone)
    order, holes = list(range(left)), [number for number in gone if number < left]
    movers = sorted(set(range(left, count)) - set(gone))
    for hole, mover in zip(holes, movers, strict=True):
        order[hole] = mover
    return order
