# SPDX-License-Identifier: Apache-2.0
"""Draws the next token of every row of a batch, with the noise of its completion and position.

Everything is an operation on the device, so that a decoder can capture drawing together with its forward pass.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..samples import SamplingParams
from .noise import Noise
from .sampling import sample
from .truncated import KeptSets, joined_sets, sample_truncated


@dataclass
class Drawn:
    """One token of every row.

    Args:
        token_ids (`Tensor` of shape `(rows,)`), logprobs (`Tensor` of shape `(rows,)`, float32)
        kept ([`KeptSets`], *optional*): The sets that they were drawn from, if sampling is truncated.
    """

    token_ids: Tensor
    logprobs: Tensor
    kept: KeptSets | None = None

    def first(self, count: int) -> "Drawn":
        """A copy of the first rows."""
        kept = None if self.kept is None else self.kept.first(count)
        return Drawn(self.token_ids[:count].clone(), self.logprobs[:count].clone(), kept)


class Drawer:
    """Draws for the rows that it was told of last.

    Args:
        sampling ([`SamplingParams`]): How.
        device (`torch.device`): Of the logits.
    """

    def __init__(self, sampling: SamplingParams, device: torch.device):
        self.sampling = sampling
        self.noise = Noise(device)
        # What drawing depends on: it tells captured steps apart.
        self.how = (sampling.temperature, sampling.greedy, sampling.top_k, sampling.top_p, sampling.min_p)

    def place(self, rows: Iterable[tuple[int, int]]) -> None:
        """Says which rows there are: the [`~noise.stream`] of each, and the position of its next token."""
        if not self.sampling.greedy:
            self.noise.place(rows)

    def __call__(self, logits: Tensor) -> Drawn:
        """Draws from logits of shape `(rows, vocab)`, and moves every row by one position."""
        return self.drawn(logits, None if self.sampling.greedy else self.noise.draw())

    def drawn(self, logits: Tensor, uniforms: Tensor | None) -> Drawn:
        """Draws with given numbers, of shape `(rows,)`."""
        draw = sample_truncated if self.sampling.is_truncated else sample
        return Drawn(*draw(logits, self.sampling, uniforms))


def joined(parts: Sequence[Drawn]) -> Drawn:
    """What several sets of rows have drawn, one after the other."""
    if len(parts) == 1:
        return parts[0]
    kept = None if parts[0].kept is None else joined_sets([part.kept for part in parts])
    token_ids, logprobs = zip(*((part.token_ids, part.logprobs) for part in parts), strict=True)
    return Drawn(torch.cat(token_ids), torch.cat(logprobs), kept)
