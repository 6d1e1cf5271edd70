# SPDX-License-Identifier: Apache-2.0
"""Which completions are decoded when: the queue of prompts, the rows of the batch, and their results.

A decoder knows only groups (prefilled prompts) and rows (running completions). The order of all its calls follows from
the request alone, so that equal requests give equal completions.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..engine import Rollout, SamplingParams
from .sampling import sample


class Decoder(ABC):
    """A model with the keys and values of its prompts and rows.

    Attributes:
        can_refill (`bool`): Whether prompts and rows can be added while others run. If not, they are added only to an
            empty batch, and groups are never split.
        device (`torch.device`): The device of the logits.
    """

    can_refill: bool
    device: torch.device

    @abstractmethod
    def prefill(self, prompt_ids: Sequence[Sequence[int]]) -> Tensor:
        """Computes prompts as new groups, whose numbers follow the last one.

        Returns:
            `Tensor` of shape `(prompts, vocab)`: The logits of the first token of their completions.
        """

    @abstractmethod
    def start_rows(self, groups: Sequence[int]) -> None:
        """Appends one row per entry to the batch. Each continues the prompt of its group."""

    @abstractmethod
    def step(self, token_ids: Tensor) -> Tensor:
        """Appends a token to every row.

        Returns:
            `Tensor` of shape `(rows, vocab)`: The logits of the next token.
        """

    @abstractmethod
    def reorder(self, rows: Sequence[int]) -> None:
        """Replaces row `i` by row `rows[i]`. Rows that are not listed are removed."""

    def release(self, groups: Sequence[int]) -> None:  # noqa: B027 - a decoder that keeps no groups has nothing to do
        """Forgets prompts that no row continues or will continue."""


@dataclass
class _Row:
    """A running completion."""

    completion: int
    group: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Scheduler:
    """Runs one request on a decoder.

    Args:
        max_batch_rows (`int`): Completions decoded at a time.
        sync_every (`int`): Tokens decoded between two looks at them. Reading a token makes the host wait for the
            device. Above 1, rows that have ended are decoded for some more tokens, which are dropped.
    """

    def __init__(
        self,
        decoder: Decoder,
        prompt_ids: Sequence[Sequence[int]],
        num_generations: int,
        sampling: SamplingParams,
        *,
        max_batch_rows: int,
        sync_every: int = 1,
        weights_version: int = 0,
    ):
        self.decoder = decoder
        self.prompt_ids = prompt_ids
        self.num_generations = num_generations
        self.sampling = sampling
        self.max_batch_rows = max_batch_rows
        self.sync_every = sync_every
        self.weights_version = weights_version
        self.generator = torch.Generator(device=decoder.device).manual_seed(sampling.seed)
        self.num_completions = len(prompt_ids) * num_generations
        self.rows: list[_Row] = []
        self.started = 0  # completions start in order
        self.first_logits: dict[int, Tensor] = {}  # of groups that have rows to start
        self.running = [num_generations] * len(prompt_ids)  # completions of each group that have not ended
        self.rollouts: list[Rollout | None] = [None] * self.num_completions

    def run(self) -> list[Rollout]:
        logits = self._start_rows()
        while self.rows:
            token_ids = self._decode(logits)
            alive = self._drop_ended()
            if len(alive) < len(token_ids):
                token_ids = token_ids[torch.tensor(alive, dtype=torch.long, device=token_ids.device)]
            logits = self.decoder.step(token_ids) if self.rows else None
            if (first := self._start_rows()) is not None:
                logits = first if logits is None else torch.cat([logits, first])
        return self.rollouts

    def _start_rows(self) -> Tensor | None:
        """Fills the free rows and returns the logits of the new rows."""
        new = range(self.started, min(self.num_completions, self.started + self._free_rows()))
        if len(new) == 0:
            return None
        groups = [completion // self.num_generations for completion in new]
        self._prefill(groups[-1])
        self.decoder.start_rows(groups)
        self.rows += [_Row(completion, group) for completion, group in zip(new, groups, strict=True)]
        self.started = new.stop
        logits = torch.stack([self.first_logits[group] for group in groups])
        for group in set(groups):
            if (group + 1) * self.num_generations <= self.started:
                del self.first_logits[group]
        return logits

    def _free_rows(self) -> int:
        if self.decoder.can_refill:
            return self.max_batch_rows - len(self.rows)
        groups = max(1, self.max_batch_rows // self.num_generations)
        return 0 if self.rows else groups * self.num_generations

    def _prefill(self, last_group: int) -> None:
        first_group = -(-self.started // self.num_generations)
        if first_group <= last_group:
            groups = range(first_group, last_group + 1)
            logits = self.decoder.prefill([self.prompt_ids[group] for group in groups])
            self.first_logits |= dict(zip(groups, logits, strict=True))

    def _decode(self, logits: Tensor) -> Tensor:
        """Draws the next tokens of all rows until the next look, and returns the last ones."""
        longest = max(len(row.tokens) for row in self.rows)
        count = min(self.sync_every, self.sampling.max_completion_length - longest)
        tokens, logprobs = [], []
        for number in range(count):
            if number > 0:
                logits = self.decoder.step(tokens[-1])
            token_ids, token_logprobs = sample(logits, self.sampling, self.generator)
            tokens.append(token_ids)
            logprobs.append(token_logprobs)
        self._record(torch.stack(tokens, dim=1).tolist(), torch.stack(logprobs, dim=1).tolist())
        return tokens[-1]

    def _record(self, tokens: list[list[int]], logprobs: list[list[float]]) -> None:
        for row, ids, logps in zip(self.rows, tokens, logprobs, strict=True):
            for token, logp in zip(ids, logps, strict=True):
                row.tokens.append(token)
                row.logprobs.append(logp)
                if token in self.sampling.eos_token_ids:
                    break

    def _drop_ended(self) -> list[int]:
        """Removes ended rows from the batch and returns the remaining rows in their new order."""
        ended = []
        for number, row in enumerate(self.rows):
            stopped = self._has_stopped(row)
            if stopped or len(row.tokens) == self.sampling.max_completion_length:
                ended.append(number)
                self.rollouts[row.completion] = Rollout(
                    row.tokens, row.logprobs, "stop" if stopped else "length", weights_version=self.weights_version
                )
                self.running[row.group] -= 1
        if not ended:
            return list(range(len(self.rows)))
        alive = _without(len(self.rows), ended)
        groups = {self.rows[number].group for number in ended}
        self.rows = [self.rows[number] for number in alive]
        self.decoder.reorder(alive)
        self.decoder.release(sorted(group for group in groups if self.running[group] == 0))
        return alive

    def _has_stopped(self, row: _Row) -> bool:
        return row.tokens[-1] in self.sampling.eos_token_ids


def _without(count: int, gone: list[int]) -> list[int]:
    """The numbers below `count` that are not gone. The last ones fill the gaps, so that as few as possible move."""
    left = count - len(gone)
    order, holes = list(range(left)), [number for number in gone if number < left]
    movers = sorted(set(range(left, count)) - set(gone))
    for hole, mover in zip(holes, movers, strict=True):
        order[hole] = mover
    return order
