# SPDX-License-Identifier: Apache-2.0
"""Which completions are decoded when: the queue of prompts, the rows of the batch, and their results.

A decoder knows only groups (prefilled prompts) and rows (running completions). The order of all its calls follows from
the request alone, and noise is a function of completion and position, so that equal requests give equal completions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..refill import Refill
from ..samples import Rollout, SamplingParams
from .decoder import Decoder
from .drafts import Drafts
from .noise import Noise, stream
from .sampling import sample
from .truncated import KeptSets, sample_truncated, to_host


@dataclass
class Row:
    """A running completion, or the running turn of an episode.

    Attributes:
        stream (`int`): Of its noise.
        room (`int`): Most tokens of the turn.
        before (`int`): Tokens of the completion before the turn.
        excess (`int`): Tokens of the decoder behind what was drawn, decoded before anybody looked.
        draft (`list[int]`): Tokens of the decoder behind the last one that was drawn, which may be drawn next.
        finish_reason (`str`, *optional*): Set when the turn has ended.
        kept (`list[np.ndarray]`, *optional*): The sets that the tokens were drawn from, if sampling is truncated.
    """

    completion: int
    stream: int
    room: int
    before: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    excess: int = 0
    draft: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    kept: list[np.ndarray] | None = None

    @property
    def length(self) -> int:
        return self.before + len(self.tokens)


class Scheduler:
    """Runs one request on a decoder.

    Args:
        group_sizes (`Sequence[int]`): Completions of each prompt.
        max_batch_rows (`int`): Completions decoded at a time.
        refill ([`Refill`], *optional*): Looks at completions that have ended, and may ask for more prompts, which get
            as many completions as the first.
        sync_every (`int`): Tokens decoded between two looks at them. Reading a token makes the host wait for the
            device. Above 1, rows that have ended are decoded for some more tokens, which are dropped.
        drafts ([`Drafts`], *optional*): Guesses the tokens that rows draw next, which are then decoded at once. Needs
            a look at every token.
    """

    def __init__(
        self,
        decoder: Decoder,
        prompt_ids: Sequence[Sequence[int]],
        group_sizes: Sequence[int],
        sampling: SamplingParams,
        *,
        max_batch_rows: int,
        sync_every: int = 1,
        weights_version: int = 0,
        refill: Refill | None = None,
        drafts: Drafts | None = None,
    ):
        self.decoder = decoder
        self.sampling = sampling
        self.max_batch_rows = max_batch_rows
        self.sync_every = sync_every
        self.weights_version = weights_version
        self.drafts = drafts
        self.noise = Noise(decoder.device)
        self.noise_is_placed = False  # for the rows as they are now
        self.refill = refill
        self.prompt_ids: list[Sequence[int]] = []
        self.group_of: list[int] = []
        self.ends: list[int] = []  # of each group among the completions
        self.running: list[int] = []  # completions of each group that have not ended
        self.rollouts: list[Rollout | None] = []
        self.num_completions = 0
        self.group_size = next(iter(group_sizes), 1)
        self._ask_for(prompt_ids, group_sizes)
        self.rows: list[Row] = []
        self.started = 0  # completions start in order
        self.prefilled = 0  # and so do groups
        self.first_logits: dict[int, Tensor] = {}  # of groups that have rows to start
        self.done_groups: list[int] = []  # to be released

    def run(self) -> list[Rollout]:
        logits = self._join()
        while self.rows:
            token_ids = self._decode(logits)
            alive = self._drop_ended()
            if len(alive) < len(token_ids):
                token_ids = token_ids[torch.tensor(alive, dtype=torch.long, device=token_ids.device)]
            logits = self._advance(token_ids) if self.rows else None
            if (joined := self._join()) is not None:
                logits = joined if logits is None else torch.cat([logits, joined])
        return self.rollouts

    def _join(self) -> Tensor | None:
        """Fills the free rows and returns the logits of the rows that joined the batch."""
        self._take_further(waits=not self.rows and self.started == self.num_completions)
        return self._start_rows()

    def _take_further(self, waits: bool) -> None:
        """Puts what the refill asks for at the end of the queue."""
        if self.refill is not None and (further := self.refill.further(waits)):
            self._queue(further)

    def _queue(self, further: Sequence[Any]) -> None:
        self._ask_for(further, [self.group_size] * len(further))

    def _ask_for(self, prompt_ids: Sequence[Sequence[int]], group_sizes: Sequence[int]) -> None:
        for size in group_sizes:
            self.group_of += [len(self.ends)] * size
            self.ends.append(len(self.group_of))
        self.prompt_ids += prompt_ids
        self.running += group_sizes
        self.rollouts += [None] * sum(group_sizes)
        self.num_completions = len(self.group_of)

    def _start_rows(self) -> Tensor | None:
        new = range(self.started, min(self.num_completions, self.started + self._free_rows()))
        if len(new) == 0:
            return None
        groups = self.group_of[new.start : new.stop]
        self._prefill(groups[-1])
        self.decoder.start_rows(groups)
        self._add([self._row(completion) for completion in new])
        self.started = new.stop
        logits = torch.stack([self.first_logits[group] for group in groups])
        for group in set(groups):
            if self.ends[group] <= self.started:
                del self.first_logits[group]
        return logits

    def _row(self, completion: int, before: int = 0) -> Row:
        kept = [] if self.sampling.is_truncated else None
        return Row(completion, stream(self.sampling.seed, completion), self._room(completion), before, kept=kept)

    def _room(self, completion: int) -> int:
        return self.sampling.max_completion_length

    def _add(self, rows: list[Row]) -> None:
        self.rows += rows
        self.noise_is_placed = False
        if self.drafts is not None:
            for row in rows:
                self.drafts.start(row.completion, self.prompt_ids[self.group_of[row.completion]])

    def _uniforms(self) -> Tensor | None:
        if self.sampling.greedy:
            return None
        if not self.noise_is_placed:
            places = [(row.stream, row.length + ahead) for row in self.rows for ahead in range(1 + len(row.draft))]
            self.noise.place(places)
            self.noise_is_placed = len(places) == len(self.rows)
        return self.noise.draw()

    def _free_rows(self) -> int:
        if self.decoder.can_refill:
            return self.max_batch_rows - len(self.rows)
        if self.rows or self.prefilled == len(self.ends):
            return 0
        most = self.started + self.max_batch_rows
        whole_groups = [end for end in self.ends[self.prefilled :] if end <= most] or [self.ends[self.prefilled]]
        return whole_groups[-1] - self.started

    def _prefill(self, last_group: int) -> None:
        groups = range(self.prefilled, last_group + 1)
        if len(groups) > 0:
            logits = self.decoder.prefill([self.prompt_ids[group] for group in groups])
            self.first_logits |= dict(zip(groups, logits, strict=True))
            self.prefilled = groups.stop

    def _decode(self, logits: Tensor) -> Tensor:
        """Draws the next tokens of all rows until the next look, and returns the last ones."""
        if any(row.draft for row in self.rows):
            return self._match(logits)
        longest = max(row.length for row in self.rows)
        count = min(self.sync_every, self.sampling.max_completion_length - longest)
        tokens, logprobs, kept = [], [], []
        for number in range(count):
            if number > 0:
                logits = self.decoder.step(tokens[-1])
            token_ids, token_logprobs, *sets = self._draw(logits)
            tokens.append(token_ids)
            logprobs.append(token_logprobs)
            kept += sets
        drawn = (torch.stack(parts, dim=1).tolist() for parts in (tokens, logprobs))
        for row, ids, logps in zip(self.rows, *drawn, strict=True):
            self._record(row, ids, logps)
        if kept:
            for row, sets in zip(self.rows, to_host(kept), strict=True):
                row.kept += sets[: count - row.excess]
        return tokens[-1]

    def _advance(self, token_ids: Tensor) -> Tensor:
        """Decodes the last token of every row, and drafts; returns the logits behind each token."""
        if self.drafts is not None:
            rooms = {row.completion: row.room - len(row.tokens) - 1 for row in self.rows}
            for row, draft in zip(self.rows, self.drafts.draft(rooms), strict=True):
                row.draft = draft
            if any(row.draft for row in self.rows):
                self.noise_is_placed = False
                return self.decoder.append([[row.tokens[-1], *row.draft] for row in self.rows])
        return self.decoder.step(token_ids)

    def _match(self, logits: Tensor) -> Tensor:
        """Draws behind every token of every draft, and takes what was drawn as long as the draft before it equals it.

        What is drawn at a position depends on its logits and its noise alone, so these are the tokens that rows draw
        one at a time.
        """
        token_ids, logprobs, *kept = self._draw(logits)
        counts = [1 + len(row.draft) for row in self.rows]
        sets = [of_row for (of_row,) in to_host(kept)] if kept else [None] * len(token_ids)
        parts = (_split(drawn, counts) for drawn in (token_ids.tolist(), logprobs.tolist(), sets))
        for row, ids, logps, own_sets in zip(self.rows, *parts, strict=True):
            taken = 1 + _equal(ids, row.draft)
            self._record(row, ids[:taken], logps[:taken])
            row.excess += len(ids) - taken
            if row.kept is not None:
                row.kept += own_sets[: len(ids) - row.excess]
        self.decoder.cut([row.excess for row in self.rows])
        for row in self.rows:
            row.draft, row.excess = [], 0
        return torch.tensor([row.tokens[-1] for row in self.rows], device=logits.device)

    def _draw(self, logits: Tensor) -> tuple[Tensor, Tensor] | tuple[Tensor, Tensor, KeptSets]:
        draw = sample_truncated if self.sampling.is_truncated else sample
        return draw(logits, self.sampling, self._uniforms())

    def _record(self, row: Row, ids: list[int], logprobs: list[float]) -> None:
        """Appends what a row has drawn, up to the end of its turn."""
        taken = len(ids)
        for number, (token, logp) in enumerate(zip(ids, logprobs, strict=True), start=1):
            row.tokens.append(token)
            row.logprobs.append(logp)
            if token in self.sampling.eos_token_ids:
                row.finish_reason = "stop"
            elif len(row.tokens) == row.room:
                row.finish_reason = "length"
            else:
                continue
            taken = number
            break
        row.excess = len(ids) - taken
        if self.drafts is not None:
            self.drafts.grow(row.completion, ids[:taken])

    def _drop_ended(self) -> list[int]:
        """Removes ended rows from the batch and returns the remaining rows in their new order."""
        ended = [number for number, row in enumerate(self.rows) if row.finish_reason is not None]
        if not ended:
            return list(range(len(self.rows)))
        self._take_ended(ended)
        alive = _without(len(self.rows), ended)
        self.rows = [self.rows[number] for number in alive]
        self.decoder.reorder(alive)
        self.noise_is_placed = False
        self._release_groups()
        return alive

    def _take_ended(self, ended: list[int]) -> None:
        """Takes what rows have drawn, before they leave the batch."""
        for number in ended:
            row = self.rows[number]
            drawn = (row.tokens, row.logprobs, row.finish_reason)
            self._finish(row.completion, Rollout(*drawn, weights_version=self.weights_version, kept=row.kept))

    def _finish(self, completion: int, rollout: Rollout) -> None:
        self.rollouts[completion] = rollout
        group = self.group_of[completion]
        self.running[group] -= 1
        if self.running[group] == 0:
            self.done_groups.append(group)
        if self.refill is not None:
            self.refill.finished(completion, rollout)

    def _release_groups(self) -> None:
        if self.done_groups:
            self.decoder.release(sorted(self.done_groups))
            self.done_groups = []


def _split(values: list[Any], counts: list[int]) -> list[list[Any]]:
    ends = list(accumulate(counts))
    return [values[end - count : end] for end, count in zip(ends, counts, strict=True)]


def _equal(ids: list[int], draft: list[int]) -> int:
    """How many of the first tokens are those of the draft."""
    return next((number for number, token in enumerate(draft) if token != ids[number]), len(draft))


def _without(count: int, gone: list[int]) -> list[int]:
    """The numbers below `count` that are not gone. The last ones fill the gaps, so that as few as possible move."""
    left = count - len(gone)
    order, holes = list(range(left)), [number for number in gone if number < left]
    movers = sorted(set(range(left, count)) - set(gone))
    for hole, mover in zip(holes, movers, strict=True):
        order[hole] = mover
    return order
