# SPDX-License-Identifier: Apache-2.0
"""Attention of several tokens after each row: to the prompt of its group, to the row's own tokens, and causally to
each other. The prompt and the row's memory are read in place.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .fast_attention import Heads
from .key_values import KeyValues

# Queries whose scores are in memory at a time.
MAX_QUERIES = 256


@dataclass
class Run:
    """New tokens of a row.

    Attributes:
        row (`int`), slot (`int`): Where the row is among the completions, and its prompt among the prompts.
        prompt_length (`int`), length (`int`): Tokens of the prompt, and of the row before the run.
        count (`int`): New tokens.
    """

    row: int
    slot: int
    prompt_length: int
    length: int
    count: int

    @property
    def position(self) -> int:
        """Of the first new token."""
        return self.prompt_length + self.length


class RunAttention:
    """Stores keys and values of new tokens after their rows, and attends.

    Args:
        heads ([`Heads`]): Of all new tokens, one run after the other.
        prompts (`KeyValues`), completions (`KeyValues`): Keys and values of groups and rows.
        runs (`Sequence[Run]`): Each of another row.
    """

    def __init__(self, heads: Heads, prompts: KeyValues, completions: KeyValues, runs: Sequence[Run]):
        self.heads, self.prompts, self.completions, self.runs = heads, prompts, completions, runs
        self.counts = [run.count for run in runs]
        longest = min(max(self.counts), MAX_QUERIES)
        self.hidden = torch.full((longest, longest), float("-inf"), device=heads.keys.device).triu(1)

    def __call__(self, number: int, values: Tensor) -> Tensor:
        """Takes a layer's number and its values, as `fast_decoder.Attention` says."""
        prompts, completions = self.prompts.memory[number], self.completions.memory[number]
        parts = [tensor.split(self.counts) for tensor in (self.heads.queries, self.heads.keys, values)]
        outputs = []
        for run, query, key, value in zip(self.runs, *parts, strict=True):
            own = completions[:, run.row, :, : run.length + run.count]
            own[0, :, run.length :] = key.transpose(0, 1)
            own[1, :, run.length :] = value.transpose(0, 1)
            prompt = prompts[:, run.slot, :, : run.prompt_length]
            for start in range(0, run.count, MAX_QUERIES):
                piece = query[start : start + MAX_QUERIES]
                outputs.append(self._read(piece, prompt, own[:, :, : run.length + start + len(piece)]))
        return torch.cat(outputs)

    def _read(self, query: Tensor, prompt: Tensor, own: Tensor) -> Tensor:
        """Attends from the last tokens of a row to its prompt and to its own tokens up to each of them.

        Args:
            query (`Tensor` of shape `(tokens, kv_heads, query heads per kv head, head_dim)`)
            prompt (`Tensor`), own (`Tensor`): Keys and values, of shape `(2, kv_heads, tokens, head_dim)`.

        Returns:
            `Tensor` of shape `(tokens, heads * head_dim)`.
        """
        count, _, shared, _ = query.shape
        queries = query.permute(1, 2, 0, 3).flatten(1, 2)
        scores = torch.cat([queries @ part[0].transpose(1, 2) for part in (prompt, own)], dim=2)
        scores[..., -count:].unflatten(1, (shared, count)).add_(self.hidden[:count, :count])
        of_prompt, of_own = scores.softmax(dim=-1).split((prompt.shape[2], own.shape[2]), dim=2)
        read = of_prompt @ prompt[1] + of_own @ own[1]
        return read.unflatten(1, (shared, count)).permute(2, 0, 1, 3).flatten(1)
