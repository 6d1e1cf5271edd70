# SPDX-License-Identifier: Apache-2.0
"""Episodes on a decoder, never in lock step: an episode that waits for an answer leaves the batch, the others go on.

Its keys and values are put aside. Its answer is appended as one run of tokens after them, together with the answers of
other episodes, and the episode is back in the batch: no token is computed twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from ..observers import Answer, Observers
from ..samples import SamplingParams
from ..session import Session
from ..transcript import Transcript
from .decoder import Decoder
from .scheduler import Scheduler

# Longest wait, in seconds, for all answers to the turns that ended in a step. Whatever answers sooner is back at the
# next step in every run, so that runs with such tools are equal to the last bit. Once an answer has come later, the
# rest of the call waits less: tools that are slow every time would hold up all other episodes in each such step.
PATIENCE, LESS_PATIENCE = 0.05, 0.002


@dataclass
class _Waiting:
    """An episode that is not in the batch.

    Attributes:
        computed (`int`): Tokens of the episode that have keys and values.
        parked (*optional*): Its state in the decoder; unset if the episode has ended but for the last answer.
    """

    computed: int
    parked: Any = None


class SessionScheduler(Scheduler):
    """Plays the sessions of one request on a decoder. Neighbors with equal prompts are a group.

    Args:
        observers ([`Observers`]): Where the sessions answer.
    """

    def __init__(
        self,
        decoder: Decoder,
        sessions: Sequence[Session],
        sampling: SamplingParams,
        observers: Observers,
        **options: Any,
    ):
        prompts, sizes = groups_of(sessions)
        super().__init__(decoder, prompts, sizes, sampling, **options)
        self.sessions = list(sessions)
        self.observers = observers
        self.transcripts = [Transcript(sampling) for _ in sessions]
        self.waiting: dict[int, _Waiting] = {}  # by completion
        self.answered: list[int] = []  # completions that wait for a free row
        self.patience = PATIENCE

    def _join(self) -> Tensor | None:
        self._take_answers(self.observers.results())
        while True:
            is_idle = not (self.rows or self.waiting) and self.started == self.num_completions
            self._take_further(waits=is_idle)
            self._release_groups()
            parts = [logits for logits in (self._rejoin(), self._start_rows()) if logits is not None]
            if self.rows or not self.waiting:
                return torch.cat(parts) if parts else None
            self._take_answers(self.observers.first())

    def _queue(self, further: Sequence[Session]) -> None:
        self.sessions += further
        self.transcripts += [Transcript(self.sampling) for _ in further]
        self._enqueue(*groups_of(further))

    def _room(self, completion: int) -> int:
        return self.transcripts[completion].room

    def _rejoin(self) -> Tensor | None:
        """Appends answers to the episodes that have one, as far as rows are free."""
        free = max(0, self.max_batch_rows - len(self.rows))
        back, self.answered = self.answered[:free], self.answered[free:]
        if not back:
            return None
        waiting = [self.waiting.pop(completion) for completion in back]
        transcripts = [self.transcripts[completion] for completion in back]
        runs = [transcript.ids[row.computed :] for row, transcript in zip(waiting, transcripts, strict=True)]
        logits = self.decoder.extend([row.parked for row in waiting], runs)
        self._add([self._row(completion, len(self.transcripts[completion].ids)) for completion in back])
        return logits

    def _take_ended(self, ended: list[int]) -> None:
        rows = {self.rows[number].completion: number for number in ended}
        for completion, number in rows.items():
            row = self.rows[number]
            self.transcripts[completion].add_turn(row.tokens, row.logprobs, row.finish_reason, kept=row.kept)
            self.waiting[completion] = _Waiting(row.length - 1)  # the last token was drawn, and not computed
            self.observers.submit(completion, self.sessions[completion].observe, row.tokens, row.finish_reason)
        answers = self.observers.results(rows, self.patience)
        if not rows.keys() <= answers.keys():
            self.patience = LESS_PATIENCE
        self._take_answers(answers)
        staying = [
            completion
            for completion, number in rows.items()
            if completion in self.waiting and self.rows[number].finish_reason == "stop"
        ]
        if not staying:
            return
        numbers = [rows[completion] for completion in staying]
        parked = self.decoder.park(numbers, [self._excess(self.rows[number]) for number in numbers])
        for completion, state in zip(staying, parked, strict=True):
            self.waiting[completion].parked = state

    def _take_answers(self, answers: dict[int, Answer]) -> None:
        for completion, answer in answers.items():
            transcript = self.transcripts[completion]
            if transcript.answer(answer):
                self.answered.append(completion)
                if self.drafts is not None:
                    self.drafts.grow(completion, answer, is_drawn=False)
            else:
                del self.waiting[completion]
                self._finish(completion, transcript.rollout(self.weights_version))


def groups_of(sessions: Sequence[Session]) -> tuple[list[list[int]], list[int]]:
    """Returns the prompts of neighbors with equal prompts, and how many neighbors share each."""
    groups = [(prompt, len(list(members))) for prompt, members in groupby(list(one.prompt_ids) for one in sessions)]
    return [prompt for prompt, _ in groups], [size for _, size in groups]
