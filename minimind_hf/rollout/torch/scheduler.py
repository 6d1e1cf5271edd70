# SPDX-License-Identifier: Apache-2.0
"""Which completions are decoded when: the queue of prompts, the rows of the batch, and their results.

A decoder knows only groups (prefilled prompts) and rows (running completions). The order of all its calls follows from
the request alone, and noise is a function of completion and position, so that equal requests give equal completions.
"""

from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...forward.on_device import on_device
from ..refill import Refill
from ..samples import Rollout, SamplingParams
from .decoder import Decoder
from .drafts import Drafts
from .draws import Drawer, Drawn, joined
from .looks import Look
from .noise import stream
from .rows import Row, without


class Scheduler:
    """Runs one request on a decoder.

    Tokens are drawn in blocks. The host may look at a block after it has asked for the next one, so that a GPU never
    waits for the host; rows that have ended are decoded until then, and these tokens are dropped.

    Args:
        group_sizes (`Sequence[int]`): Completions of each prompt.
        max_batch_rows (`int`): Completions decoded at a time.
        refill ([`Refill`], *optional*): Looks at completions that have ended, and may ask for more prompts, which get
            as many completions as the first.
        block_size (`int`): Tokens in a block.
        blocks_ahead (`int`): Blocks that may be asked for before the host looks at one.
        drafts ([`Drafts`], *optional*): Guesses the tokens that rows draw next, which are then decoded at once. Needs
            a look at every token: blocks of 1, and none ahead.
    """

    def __init__(
        self,
        decoder: Decoder,
        prompt_ids: Sequence[Sequence[int]],
        group_sizes: Sequence[int],
        sampling: SamplingParams,
        *,
        max_batch_rows: int,
        block_size: int = 1,
        blocks_ahead: int = 0,
        weights_version: int = 0,
        refill: Refill | None = None,
        drafts: Drafts | None = None,
    ):
        self.decoder = decoder
        self.sampling = sampling
        self.max_batch_rows = max_batch_rows
        self.block_size = block_size
        self.blocks_ahead = blocks_ahead
        self.weights_version = weights_version
        self.drafts = drafts
        self.drawer = Drawer(sampling, decoder.device)
        self.noise_is_placed = False  # for the rows as they are now
        self.steps = 0  # draws for all rows of the batch
        self.looks: deque[tuple[Look, list[Row]]] = deque()  # blocks that nobody has looked at, and their rows
        self.refill = refill
        self.prompt_ids: list[Sequence[int]] = []
        self.group_of: list[int] = []
        self.ends: list[int] = []  # of each group among the completions
        self.unfinished: list[int] = []  # completions of each group that have not ended
        self.rollouts: list[Rollout | None] = []
        self.num_completions = 0
        self.group_size = next(iter(group_sizes), 1)
        self._enqueue(prompt_ids, group_sizes)
        self.rows: list[Row] = []
        self.started = 0  # completions start in order
        self.prefilled = 0  # and so do groups
        self.first_logits: dict[int, Tensor] = {}  # of groups that have rows to start
        self.done_groups: list[int] = []  # to be released

    def run(self) -> list[Rollout]:
        new = self._join()
        while self.rows:
            token_ids = self._decode(new)
            alive = self._drop_ended()
            if len(alive) < len(token_ids):
                token_ids = token_ids[on_device(alive, token_ids.device)]
            advanced = self._advance(token_ids) if self.rows else None
            new = self._with_first(advanced, self._join())
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
        self._enqueue(further, [self.group_size] * len(further))

    def _enqueue(self, prompt_ids: Sequence[Sequence[int]], group_sizes: Sequence[int]) -> None:
        for size in group_sizes:
            self.group_of += [len(self.ends)] * size
            self.ends.append(len(self.group_of))
        self.prompt_ids += prompt_ids
        self.unfinished += group_sizes
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
        for row in rows:
            row.since = self.steps
        self.rows += rows
        self.noise_is_placed = False
        if self.drafts is not None:
            for row in rows:
                self.drafts.start(row.completion, self.prompt_ids[self.group_of[row.completion]])

    def _length(self, row: Row) -> int:
        """Tokens of a row, also those that nobody has looked at."""
        return row.before + self.steps - row.since

    def _excess(self, row: Row) -> int:
        """Tokens in the decoder past the end of a turn, decoded before anybody looked."""
        return self._length(row) - row.length

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

    def _decode(self, new: Tensor | Drawn) -> Tensor:
        """Draws the tokens of a block, whose first may have been drawn already, and returns the last ones."""
        if self.drafts is not None and any(row.draft for row in self.rows):
            return self._match(new)
        block = [new if isinstance(new, Drawn) else self._draw(new)]
        left = self.sampling.max_completion_length - max(self._length(row) for row in self.rows)
        for _ in range(min(self.block_size - 1, left)):
            block.append(self._step(block[-1].token_ids))
        self.looks.append((Look(block), list(self.rows)))
        self._look(is_last=left < self.block_size)
        return block[-1].token_ids

    def _look(self, is_last: bool) -> None:
        """Takes the blocks that are there, and waits for as many as it must; for all, if a row can have no more."""
        while self.looks and (is_last or len(self.looks) > self.blocks_ahead or self.looks[0][0].is_there()):
            look, rows = self.looks.popleft()
            for row, taken in zip(rows, look.take(), strict=True):
                if row.finish_reason is None:
                    self._record(row, *taken)

    def _advance(self, token_ids: Tensor) -> Tensor | Drawn:
        """Decodes the last token of every row together with its draft, if it has one.

        Returns:
            `Tensor` or [`Drawn`]: The logits after each token, or what a step that includes drawing drew from them.
        """
        if self.drafts is not None:
            rooms = {row.completion: row.room - len(row.tokens) - 1 for row in self.rows}
            for row, draft in zip(self.rows, self.drafts.draft(rooms), strict=True):
                row.draft = draft
            if any(row.draft for row in self.rows):
                self.noise_is_placed = False
                return self.decoder.append([[row.tokens[-1], *row.draft] for row in self.rows])
        return self._step(token_ids) if self.decoder.draws else self.decoder.step(token_ids)

    def _with_first(self, advanced: Tensor | Drawn | None, first: Tensor | None) -> Tensor | Drawn | None:
        """Adds the first logits of the rows that have joined the batch."""
        if first is None or advanced is None:
            return advanced if first is None else first
        if isinstance(advanced, Drawn):
            return joined([advanced, self._draw_first(first)])
        return torch.cat([advanced, first])

    def _match(self, logits: Tensor) -> Tensor:
        """Draws after every token of every draft, and takes what was drawn as long as the draft before it equals it.

        What is drawn at a position depends on its logits and its noise alone, so these are the tokens that rows draw
        one at a time.
        """
        drawn = self._draw(logits)
        counts = [1 + len(row.draft) for row in self.rows]
        sets = [None] * len(logits) if drawn.kept is None else drawn.kept.to_host()
        parts = (_split(values, counts) for values in (drawn.token_ids.tolist(), drawn.logprobs.tolist(), sets))
        excess = []
        for row, ids, logps, own_sets in zip(self.rows, *parts, strict=True):
            had, taken = len(row.tokens), 1 + _equal(ids, row.draft)
            self._record(row, ids[:taken], logps[:taken], own_sets)
            excess.append(len(ids) - (len(row.tokens) - had))
            row.since, row.draft = self.steps - len(row.tokens), []
        self.decoder.cut(excess)
        return on_device([row.tokens[-1] for row in self.rows], logits.device)

    def _draw(self, logits: Tensor) -> Drawn:
        """Draws the next tokens of all rows, and after every token of a draft."""
        self._place_noise()
        self.steps += 1
        return self.drawer(logits)

    def _draw_first(self, logits: Tensor) -> Drawn:
        """Draws the first tokens of the rows that have joined, where a step has drawn those of the others."""
        new = self.rows[-len(logits) :]
        for row in new:
            row.since -= 1
        self.drawer.place((row.stream, row.before) for row in new)
        self.noise_is_placed = False
        return self.drawer(logits)

    def _step(self, token_ids: Tensor) -> Drawn:
        """Decodes a token of every row, and draws the next ones."""
        self._place_noise()
        self.steps += 1
        return self.decoder.step_and_draw(token_ids, self.drawer)

    def _place_noise(self) -> None:
        if self.noise_is_placed or self.sampling.greedy:
            return
        places = [(row.stream, self._length(row) + ahead) for row in self.rows for ahead in range(1 + len(row.draft))]
        self.drawer.place(places)
        self.noise_is_placed = len(places) == len(self.rows)

    def _record(self, row: Row, ids: list[int], logprobs: list[float], kept: Sequence[np.ndarray] | None) -> None:
        taken = row.take(ids, logprobs, kept, self.sampling.eos_token_ids)
        if self.drafts is not None:
            self.drafts.grow(row.completion, ids[:taken])

    def _drop_ended(self) -> list[int]:
        """Removes ended rows from the batch and returns the remaining rows in their new order."""
        ended = [number for number, row in enumerate(self.rows) if row.finish_reason is not None]
        if not ended:
            return list(range(len(self.rows)))
        self._take_ended(ended)
        alive = without(len(self.rows), ended)
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
        self.unfinished[group] -= 1
        if self.unfinished[group] == 0:
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
