# SPDX-License-Identifier: Apache-2.0
"""The queue of prompts and rows, on a decoder that only counts."""

import pytest
import torch

from minimind_hf.rollout import SamplingParams
from minimind_hf.rollout.torch.decoder import Decoder
from minimind_hf.rollout.torch.looks import Look
from minimind_hf.rollout.torch.scheduler import Scheduler

VOCAB, EOS = 50, 0


class CountingDecoder(Decoder):
    """The next token is one less than the last, so that a prompt [n] is completed by n-1, ..., 1, 0 (the EOS)."""

    device = torch.device("cpu")

    def __init__(self, can_refill: bool = True):
        self.can_refill = can_refill
        self.prompts: dict[int, int] = {}
        self.rows: list[int] = []
        self.most_rows = self.num_groups = self.steps = 0
        self.work = 0

    def prefill(self, prompt_ids):
        new = {self.num_groups + i: ids[-1] for i, ids in enumerate(prompt_ids)}
        self.prompts |= new
        self.num_groups += len(new)
        return self._logits(list(new.values()))

    def start_rows(self, groups):
        self.rows += [self.prompts[group] for group in groups]
        self.most_rows = max(self.most_rows, len(self.rows))

    def step(self, token_ids):
        assert [row - 1 for row in self.rows] == token_ids.tolist()  # the token belongs to the row
        self.rows = token_ids.tolist()
        self.work += len(self.rows)
        return self._logits(self.rows)

    def reorder(self, rows):
        self.rows = [self.rows[row] for row in rows]

    def release(self, groups):
        for group in groups:
            del self.prompts[group]

    def _logits(self, tokens):
        return torch.nn.functional.one_hot(torch.tensor([max(token - 1, 0) for token in tokens]), VOCAB) * 100.0


def run(decoder, starts, num_generations=1, longest=40, **options):
    sampling = SamplingParams(longest, 1.0, (EOS,), greedy=True)
    options = {"max_batch_rows": 100} | options
    sizes = [num_generations] * len(starts)
    return Scheduler(decoder, [[start] for start in starts], sizes, sampling, **options).run()


STARTS = (5, 1, 9, 30, 2, 2, 17, 8, 1, 3)


@pytest.mark.parametrize("max_batch_rows", [1, 2, 3, 4, 7, 100])
@pytest.mark.parametrize("num_generations", [1, 3])
def test_every_completion_is_its_own(max_batch_rows, num_generations):
    decoder = CountingDecoder()
    rollouts = run(decoder, STARTS, num_generations, max_batch_rows=max_batch_rows, weights_version=4)
    expected = [list(range(start - 1, -1, -1)) for start in STARTS for _ in range(num_generations)]
    assert [rollout.completion_ids for rollout in rollouts] == expected
    assert all(rollout.finish_reason == "stop" and rollout.weights_version == 4 for rollout in rollouts)
    assert decoder.most_rows == min(max_batch_rows, len(expected))
    assert decoder.prompts == {}  # all were released
    assert decoder.num_groups == len(STARTS)  # each was prefilled once
    # Nothing is computed for a row that has ended: one step less than tokens each.
    assert decoder.work == sum(len(ids) - 1 for ids in expected)


def test_cut_completions():
    rollouts = run(CountingDecoder(), STARTS, longest=5)
    for start, rollout in zip(STARTS, rollouts, strict=True):
        assert len(rollout.completion_ids) == len(rollout.logprobs) == min(start, 5)
        assert rollout.finish_reason == ("length" if start > 5 else "stop")


def test_a_decoder_that_cannot_refill_gets_whole_groups_into_an_empty_batch():
    decoder = CountingDecoder(can_refill=False)
    rollouts = run(decoder, STARTS, num_generations=3, max_batch_rows=7)
    assert [len(rollout.completion_ids) for rollout in rollouts] == [start for start in STARTS for _ in range(3)]
    assert decoder.most_rows == 6
    assert run(CountingDecoder(can_refill=False), [3], num_generations=3, max_batch_rows=2)[2].completion_ids == [
        2,
        1,
        0,
    ]


class OverrunDecoder(CountingDecoder):
    """Counts on below 0, at 0: rows that have ended are decoded until somebody looks."""

    def step(self, token_ids):
        self.rows = token_ids.tolist()
        return self._logits(self.rows)


@pytest.mark.parametrize("block_size", [2, 3, 8])
@pytest.mark.parametrize("longest", [40, 7])
def test_looking_seldom_changes_no_completion(block_size, longest):
    often = run(OverrunDecoder(), STARTS, 2, longest, max_batch_rows=4)
    seldom = run(OverrunDecoder(), STARTS, 2, longest, max_batch_rows=4, block_size=block_size)
    assert seldom == often


class Growing:
    """Asks for another prompt for every completion that ends, and notes what it is told."""

    def __init__(self, further):
        self.left, self.told, self.waited = list(further), {}, 0

    def finished(self, number, rollout):
        assert number not in self.told
        self.told[number] = rollout

    def further(self, waits):
        self.waited += waits
        due = len(self.told) - (len(FURTHER) - len(self.left))
        return [[self.left.pop(0)] for _ in range(min(due, len(self.left)))]


FURTHER = (4, 25, 1, 11)


@pytest.mark.parametrize("can_refill", [True, False])
@pytest.mark.parametrize("max_batch_rows", [1, 2, 5, 100])
@pytest.mark.parametrize("num_generations", [1, 3])
def test_prompts_that_come_while_others_run(max_batch_rows, num_generations, can_refill):
    decoder, refill = CountingDecoder(can_refill), Growing(FURTHER)
    rollouts = run(decoder, STARTS[:4], num_generations, max_batch_rows=max_batch_rows, refill=refill)
    expected = [list(range(n - 1, -1, -1)) for n in STARTS[:4] + FURTHER for _ in range(num_generations)]
    assert [rollout.completion_ids for rollout in rollouts] == expected
    assert [refill.told[number] for number in range(len(expected))] == rollouts
    assert decoder.prompts == {} and decoder.num_groups == 4 + len(FURTHER)
    assert decoder.work == sum(len(ids) - 1 for ids in expected)
    assert refill.waited >= 1  # before it ended


class DrawingDecoder(OverrunDecoder):
    """Draws within its step."""

    draws = True


@pytest.mark.parametrize("make", [OverrunDecoder, DrawingDecoder])
@pytest.mark.parametrize("blocks_ahead", [0, 1, 2, 5])
@pytest.mark.parametrize("block_size", [1, 3])
@pytest.mark.parametrize("longest", [40, 7])
@pytest.mark.parametrize("can_refill", [True, False])
def test_looking_late_changes_no_completion(can_refill, longest, block_size, blocks_ahead, make, monkeypatch):
    request = {"starts": STARTS[:4], "num_generations": 2, "longest": longest, "max_batch_rows": 4}
    often = run(OverrunDecoder(can_refill), **request, refill=Growing(FURTHER))
    monkeypatch.setattr(Look, "is_there", lambda self: False)  # it never is before somebody waits for it
    refill = Growing(FURTHER)
    paces = {"block_size": block_size, "blocks_ahead": blocks_ahead}
    assert run(make(can_refill), **request, refill=refill, **paces) == often
    assert [refill.told[number] for number in range(len(often))] == often


def test_a_block_is_asked_for_before_the_last_one_is_looked_at(monkeypatch):
    events, decoder = [], DrawingDecoder()
    step, take = decoder.step, Look.take
    monkeypatch.setattr(decoder, "step", lambda ids: events.append("step") or step(ids))
    monkeypatch.setattr(Look, "take", lambda self: events.append("look") or take(self))
    monkeypatch.setattr(Look, "is_there", lambda self: False)
    run(decoder, [40], block_size=4, blocks_ahead=1)
    assert events[:9] == ["step"] * 7 + ["look"] + ["step"]
    assert "".join(event[0] for event in events).count("sssslssssl") >= 1
