# SPDX-License-Identifier: Apache-2.0
"""Completions and their prompts as token ids on the host, ragged: the input of every layout.

Lengths are known without a device synchronization, and nothing is padded before a layout packs it. Only the padded
layout pads.
"""

from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


@dataclass(kw_only=True)
class TokenBatch:
    """N completions with their prompts.

    Args:
        prompt_ids (`list[list[int]]`): The prompt of each of the N completions.
        completion_ids (`list[list[int]]`): The N completions.
        group_ids (`list[int]`): The prompt of each completion; neighbours with the same prompt have the same id.
        device (`torch.device`): Device of the tensors that the layouts make.
    """

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    group_ids: list[int]
    device: torch.device

    def __len__(self) -> int:
        return len(self.completion_ids)

    @property
    def width(self) -> int:
        """C, the tokens of the longest completion: the width of every tensor with one value per completion token."""
        return max(map(len, self.completion_ids), default=0)

    def groups(self) -> list[list[int]]:
        """Rows by prompt, in order."""
        return [list(rows) for _, rows in groupby(range(len(self)), key=self.group_ids.__getitem__)]

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
        return tuple(pad_sequence(each, batch_first=True, padding_side=side).to(self.device) for each in (ids, masks))


def made_up_batch(vocab_size: int, device: torch.device) -> TokenBatch:
    """Two groups with prompts and completions of different lengths, to try a layout on."""
    ids = [token % vocab_size for token in range(3, 27)]
    backward = ids[::-1]
    completions = [backward[5 * row : 5 * row + length] for row, length in enumerate((5, 3, 1, 4))]
    prompts = [ids[:6], ids[15:18]]
    return TokenBatch(
        prompt_ids=[prompts[0], prompts[0], prompts[1], prompts[1]],
        completion_ids=completions,
        group_ids=[0, 0, 1, 1],
        device=device,
    )
