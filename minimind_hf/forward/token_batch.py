# SPDX-License-Identifier: Apache-2.0
"""Completions and their prompts as token ids on the host, ragged: the input of every layout.

Lengths are known without a device synchronization, and nothing is padded before a layout packs it. Only the padded
layout pads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .kept_tokens import KeptTokens, joined
from .on_device import to_device


@dataclass(kw_only=True)
class TokenBatch:
    """N completions with their prompts.

    Args:
        prompt_ids (`list[list[int]]`): The prompt of each of the N completions.
        completion_ids (`list[list[int]]`): The N completions.
        group_ids (`list[int]`): The prompt of each completion; neighbours with the same prompt have the same id.
        device (`torch.device`): Device of the tensors that the layouts make.
        scored (`list[list[int]]`, *optional*): 1 for the completion tokens that anything is computed for, 0 for others
            (such as the answers of tools), which are context alone: no logits are computed for them, and their
            log-probabilities and entropies are 0. Unset: all tokens are scored.
        kept (`list[KeptTokens]`, *optional*): Of each completion, the sets that its tokens were drawn from, which
            they are scored over. Unset: nothing was cut from any distribution.
    """

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    group_ids: list[int]
    device: torch.device
    scored: list[list[int]] | None = None
    kept: list[KeptTokens] | None = None

    def __len__(self) -> int:
        return len(self.completion_ids)

    @property
    def width(self) -> int:
        """C, the tokens of the longest completion: the width of every tensor with one value per completion token."""
        return max(map(len, self.completion_ids), default=0)

    def groups(self) -> list[list[int]]:
        """Rows by prompt, in order."""
        return [list(rows) for _, rows in groupby(range(len(self)), key=self.group_ids.__getitem__)]

    def by_prompt(self) -> list["TokenBatch"]:
        """The completions of each prompt as a batch, in order."""
        return [self._rows(rows) for rows in self.groups()]

    def _rows(self, rows: list[int]) -> "TokenBatch":
        prompts, completions = ([ids[row] for row in rows] for ids in (self.prompt_ids, self.completion_ids))
        return TokenBatch(
            prompt_ids=prompts,
            completion_ids=completions,
            group_ids=[0] * len(rows),
            device=self.device,
            scored=None if self.scored is None else [self.scored[row] for row in rows],
            kept=None if self.kept is None else [self.kept[row] for row in rows],
        )

    def scored_places(self, row: int) -> Sequence[int]:
        """The places of the scored tokens in completion `row`, in order."""
        if self.scored is None:
            return range(len(self.completion_ids[row]))
        return [place for place, counts in enumerate(self.scored[row]) if counts]

    def scored_sets(self) -> KeptTokens | None:
        """The sets that all scored tokens were drawn from, completion by completion."""
        if self.kept is None:
            return None
        return joined(sets.take(self.scored_places(row)) for row, sets in enumerate(self.kept))

    def padded_sets(self) -> KeptTokens | None:
        """The sets of all `N x C` slots of the padded layout; padding has whole vocabularies."""
        return None if self.kept is None else joined(sets.padded(self.width) for sets in self.kept)

    def padded(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The batch in the padded layout.

        Returns:
            `(prompt_ids, prompt_mask, completion_ids, completion_mask)`: Prompts of shape `(N, P)`, padded on the
            left; completions of shape `(N, C)`, padded on the right.
        """
        return *self._padded(self.prompt_ids, "left"), *self._padded(self.completion_ids, "right")

    def _padded(self, rows: list[list[int]], side: str) -> tuple[Tensor, Tensor]:
        ids = [torch.tensor(row, dtype=torch.long) for row in rows]
        masks = [torch.ones_like(row) for row in ids]
        return tuple(
            to_device(pad_sequence(each, batch_first=True, padding_side=side), self.device) for each in (ids, masks)
        )


def made_up_batch(vocab_size: int, device: torch.device, prompt_length: int = 6) -> TokenBatch:
    """Two groups with prompts and completions of different lengths, to try a layout on.

    Args:
        vocab_size (`int`): The model's.
        device (`torch.device`): The model's.
        prompt_length (`int`): Tokens of the first prompt.
    """
    ids = [token % vocab_size for token in range(3, 27)]
    backward = ids[::-1]
    completions = [backward[5 * row : 5 * row + length] for row, length in enumerate((5, 3, 1, 4))]
    prompts = [[ids[(place * (1 + place // len(ids))) % len(ids)] for place in range(prompt_length)], ids[15:18]]
    return TokenBatch(
        prompt_ids=[prompts[0], prompts[0], prompts[1], prompts[1]],
        completion_ids=completions,
        group_ids=[0, 0, 1, 1],
        device=device,
    )
