# SPDX-License-Identifier: Apache-2.0
"""Which tokens are guessed, how well guesses are known, and how long drafts may be, by hand."""

import math
import random

import pytest

from minimind_hf.rollout.torch import drafts as drafting
from minimind_hf.rollout.torch.drafts import Drafts, Speculator, key_of
from minimind_hf.rollout.torch.guesses import Index, Rates, Text
from minimind_hf.rollout.torch.pass_costs import ROWS, SIZES, PassCosts

# Milliseconds as measured for a MiniMind of 512 x 8 in bfloat16
STEPS = [6.4, 6.6, 7.0, 7.8, 9.0, 11.0, 15.0, 23.0]
BLOCKS = [7.5, 7.6, 7.7, 8.1, 8.2, 8.5, 8.9, 9.3, 9.5, 10, 10.2, 11.0, 12.0, 14.0, 14.2, 15.0, 16.0, 21.0, 24.0]
CHAT = {"steps": dict(zip(ROWS, STEPS, strict=True)), "blocks": dict(zip(SIZES, BLOCKS, strict=True))}


def costs_of(guess: float = 0.0, **changes) -> PassCosts:
    return PassCosts(**{**CHAT, "guess": guess} | changes)


def test_a_text_goes_on_as_it_did_before():
    index, rates = Index(), Rates()
    index.read([1, 2, 3, 4, 5, 9])
    text = Text(index, [7, 2, 3])
    assert text.continued(9, 0.0, rates)[0] == [4, 5, 9]
    assert text.continued(2, 0.0, rates)[0] == [4, 5]
    index.read([3, 6], before=[8])  # only the last token in common, and later: worth as much, so the longer one counts
    rates.add(0, True)  # of four tokens in common
    assert Text(index, [1, 2, 3]).continued(1, 0.0, rates)[0] == [4]
    assert Text(index, [50]).continued(5, 0.0, rates) == ([], [])


def test_what_was_confirmed_stays_longer():
    index, rates = Index(), Rates()
    for follower in (5, 5, 5, 6):
        index.read([follower], before=[1])
    assert Text(index, [1]).continued(1, 0.0, rates)[0] == [5]
    for _ in range(3):
        index.read([6], before=[1])
    assert Text(index, [1]).continued(1, 0.0, rates)[0] == [6]


@pytest.mark.parametrize("share", [0.9, 0.6])
def test_what_guesses_promise_is_what_they_keep(share):
    rng, index, rates = random.Random(0), Index(), Rates()
    text, promised, right = Text(index, [0]), 0.0, 0
    for number in range(6000):  # each token follows the one before with this probability, or is any of fifty
        token = (text.ids[-1] + 1) % 50 if rng.random() < share else rng.randrange(50)
        if number >= 1000:
            ids, probabilities = text.continued(1, 0.0, rates)
            promised, right = promised + sum(probabilities), right + (ids == [token])
        text.add(token, rates)
    assert 0.9 * right - 30 < promised < 1.25 * right + 100 and right / 5000 > 0.6 * share


def test_a_draft_ends_where_it_is_unlikely():
    index, rates = Index(), Rates()
    index.read([1, 2, 3, 4])
    for kind in range(len(rates.tries)):
        rates.tries[kind], rates.hits[kind] = 100.0, 80.0
    ids, probabilities = Text(index, [1]).continued(9, 0.6, rates)
    assert ids == [2, 3] and probabilities == pytest.approx([0.8, 0.64])


def test_costs_lie_between_what_was_measured():
    costs = costs_of()
    assert costs.seconds(4, 0) == 7.0 and costs.seconds(12, 0) == pytest.approx(8.4)
    assert costs.seconds(256, 0) == pytest.approx(23.0 + 2 * 8.0)  # as from 64 to 128
    assert costs.seconds(4, 4) == 8.9 and costs.seconds(4, 20) == 12.0  # only what was measured is drafted


@pytest.mark.parametrize("rows", [1, 2, 7, 12])
def test_the_choice_is_the_best_of_all(rows):
    costs, rng = costs_of(), random.Random(rows)
    for _ in range(50):
        chains = []
        for _ in range(rows):
            chance, chain = 1.0, []
            for _ in range(rng.randrange(6)):
                chance *= rng.random()
                chain.append(chance)
            chains.append(chain)
        counts = costs.choose(rows, chains)
        ranked = sorted((chance for chain in chains for chance in chain), reverse=True)
        possible = [0, *(size - rows for size in SIZES if rows < size <= rows + len(ranked))]
        rates = [(rows + sum(ranked[:count])) / costs.seconds(rows, count) for count in possible]
        found = (rows + sum(sum(chain[:count]) for chain, count in zip(chains, counts, strict=True))) / costs.seconds(
            rows, sum(counts)
        )
        if sum(counts):
            assert found == pytest.approx(max(rates)) and found > 1.02 * rates[0]
        else:
            assert max(rates) <= 1.02 * rates[0] * (1 + 1e-9)


def test_no_draft_where_none_can_pay():
    costs = costs_of()
    assert costs.least(1) < 0.1 < 0.15 < costs.least(12) < 0.2 < costs.least(24)
    assert costs.least(SIZES[-1]) == math.inf and costs.choose(SIZES[-1], [[1.0]] * SIZES[-1]) == [0] * SIZES[-1]
    assert costs.choose(12, [[costs.least(12) - 0.01] * 16] * 12) == [0] * 12
    assert sum(costs.choose(12, [[costs.least(12) + 0.01] * 16] * 12)) > 0


def test_seconds_without_drafts_by_hand():
    costs = costs_of(steps={rows: float(rows) for rows in ROWS})  # n rows cost n
    assert costs.without_drafts([3, 1, 2], 2) == pytest.approx(1 * 2 + 2 * 2)
    assert costs.without_drafts([3, 1, 2], 3) == pytest.approx(1 * 3 + 1 * 2 + 1 * 1)
    assert costs.without_drafts([], 3) == 0.0


def play(speculator: Speculator, prompts, completions) -> Drafts:
    """Draws given completions, one list per prompt, all rows at a time."""
    drafts = speculator.begin(lambda: costs_of(guess=0.006))
    rows = {}
    for prompt, texts in zip(prompts, completions, strict=True):
        for text in texts:
            rows[len(rows)] = list(text)
            drafts.start(len(rows) - 1, prompt)
            drafts.grow(len(rows) - 1, text[:1])
    done = dict.fromkeys(rows, 1)
    while running := [number for number in rows if done[number] < len(rows[number])]:
        found = drafts.draft({number: len(rows[number]) - done[number] - 1 for number in running})
        for number, draft in zip(running, found, strict=True):
            assert len(draft) <= len(rows[number]) - done[number] - 1
            rest = rows[number][done[number] :]
            right = next((i for i, token in enumerate(draft) if token != rest[i]), len(draft))
            drafts.grow(number, rest[: right + 1])
            done[number] += right + 1
    speculator.end(drafts)
    return drafts


def test_a_policy_that_repeats_is_guessed_in_the_second_epoch_and_one_that_does_not_pauses():
    rng = random.Random(0)
    prompts = [[rng.randrange(1000) for _ in range(20)] for _ in range(2)]
    texts = [[[rng.randrange(1000) for _ in range(60)] for _ in range(6)] for _ in prompts]
    speculator = Speculator()
    first = play(speculator, prompts, texts)
    assert -10 < first.saved() < 0 and speculator.pause == 1
    for _ in range(2):
        play(speculator, prompts, texts)
    drafts = play(speculator, prompts, texts)
    assert drafts.tokens > 3 * drafts.passes and drafts.saved() > 0 and speculator.pause == 0
    (accepted, drafted), _ = speculator.measured().values()
    assert accepted > 0.9 * drafted > 0
    pauses = []
    for _ in range(60):
        noise = [[[rng.randrange(100000) for _ in range(60)] for _ in range(6)] for _ in prompts]
        drafts = play(speculator, prompts, noise)
        pauses.append(drafts.costs is None)
    assert pauses[:10].count(False) <= 5 and pauses[-40:].count(False) <= 3


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(drafting, "MOST_REMEMBERED", 1000)
    speculator = Speculator()
    for number in range(30):
        play(speculator, [[number]], [[[5] * 10] * 20])
        assert speculator.remembered == sum(len(ids) for kept in speculator.earlier.values() for ids in kept) <= 1000
    kept = speculator.earlier
    assert list(kept) == [key_of([number]) for number in range(24, 30)]  # the newest
    assert all(len(completions) == 16 for completions in kept.values())
    play(speculator, [[29]], [[[6] * 10] * 2])
    assert [ids[0] for ids in speculator.earlier[key_of([29])]] == [6] * 2 + [5] * 14
