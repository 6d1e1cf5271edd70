# SPDX-License-Identifier: Apache-2.0
"""Which tokens of which rows are decoded at once because they may be what the rows draw next.

`Drafts` serves one request; a `Speculator` lives as long as its engine, and knows what requests leave for later ones:
completions by prompt, how often guesses are right, what passes cost, and whether drafts have paid for themselves.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from .guesses import Index, Rates, Text
from .pass_costs import PassCosts

LONGEST = 16  # tokens of a draft
MOST_REMEMBERED = 4_000_000  # tokens of earlier completions
_PER_PROMPT = 16  # earlier completions that are remembered, the newest
_FAR_AHEAD = 16.0  # tokens ahead of the last row that halve what a token is worth
_LONGEST_PAUSE = 16  # requests without a guess, where drafts did not pay


class Drafts:
    """Guesses what the completions of one request draw next.

    The texts of a prompt are the prompt itself, its completions of earlier epochs, and those that are being drawn.

    Args:
        rates ([`Rates`]): Changed by what is drawn.
        costs ([`PassCosts`], *optional*): Of the model's passes. Unset: nothing is guessed.
        earlier (`Mapping[int, Sequence[Sequence[int]]]`): Completions of earlier epochs, by [`key_of`] their prompt.

    Attributes:
        passes (`int`), tokens (`int`): Draws of rows, and the tokens that came of them.
        drafted (`int`): Tokens of drafts.
    """

    def __init__(self, rates: Rates, costs: PassCosts | None, earlier: Mapping[int, Sequence[Sequence[int]]]):
        self.rates, self.costs, self.earlier = rates, costs, earlier
        self.completions: dict[int, tuple[int, array]] = {}  # by number: the key of the prompt, and the tokens
        self.passes = self.tokens = self.drafted = 0
        self._steps: dict[int, int] = {}  # that completions would take without drafts
        self._most_rows, self._seconds = 1, 0.0  # of the passes so far
        self._indices: dict[int, Index] = {}
        self._texts: dict[int, Text] = {}
        self._promised, self._accepted = 0.0, 0  # by the drafts of the last pass; of all passes before it

    def start(self, number: int, prompt_ids: Sequence[int]) -> None:
        """Says that a completion begins, or goes on after an answer."""
        self._steps[number] = self._steps.get(number, 0) - 1  # the first token needs none
        if number in self.completions:
            return
        key = key_of(prompt_ids)
        self.completions[number] = key, array("i")
        if self.costs is not None:
            if key not in self._indices:
                self._indices[key] = index = Index()
                index.read(prompt_ids)
                for ids in self.earlier.get(key, ()):
                    index.read(ids, prompt_ids)
            self._texts[number] = Text(self._indices[key], prompt_ids)

    def grow(self, number: int, ids: Sequence[int], is_drawn: bool = True) -> None:
        """Appends tokens to a completion.

        Args:
            is_drawn (`bool`): Whether the row drew them; otherwise they are an answer.
        """
        self.completions[number][1].extend(ids)
        if is_drawn:
            self.passes += 1
            self.tokens += len(ids)
            self._steps[number] += len(ids)
        if self.costs is not None:
            text, rates = self._texts[number], self.rates if is_drawn else None
            for token in ids:
                text.add(token, rates)

    def draft(self, rooms: Mapping[int, int]) -> list[list[int]]:
        """Returns what each row may draw next, as far as it pays.

        Args:
            rooms (`Mapping[int, int]`): By the number of each row's completion, the most tokens of a draft.
        """
        if self.costs is None:
            return [[] for _ in rooms]
        self._judge()
        rows, worth = len(rooms), self._worth(rooms)
        least, drafts, probabilities = self.costs.least(rows), [], []
        for number, room in rooms.items():
            most = min(room, LONGEST) if worth[number] > least else 0
            ids, right = self._texts[number].continued(most, least / worth[number], self.rates)
            drafts.append(ids)
            probabilities.append(right)
        valued = zip(worth.values(), probabilities, strict=True)
        counts = self.costs.choose(rows, [[value * each for each in right] for value, right in valued])
        chosen = zip(probabilities, counts, strict=True)
        self._promised = sum(sum(right[:count]) for right, count in chosen)
        self.drafted += sum(counts)
        self._seconds += self.costs.seconds(rows, sum(counts))
        self._most_rows = max(self._most_rows, rows)
        return [ids[:count] for ids, count in zip(drafts, counts, strict=True)]

    def _judge(self) -> None:
        """Compares what the drafts of the last pass promised with what was drawn."""
        accepted = self.tokens - self.passes
        self.rates.judge(self._promised, accepted - self._accepted)
        self._accepted = accepted

    def _worth(self, numbers: Iterable[int]) -> dict[int, float]:
        """What a token that is right is worth: 1 on the average, less for rows that are ahead. The row that is last
        decides how many passes a request takes."""
        lengths = {number: len(self.completions[number][1]) for number in numbers}
        shortest = min(lengths.values())
        weights = {number: 1 / (1 + (length - shortest) / _FAR_AHEAD) for number, length in lengths.items()}
        scale = self.rates.trust * len(weights) / sum(weights.values())
        return {number: scale * weight for number, weight in weights.items()}

    def saved(self) -> float:
        """Seconds that the request would have taken longer without drafts and guesses, as far as the costs tell."""
        read = sum(len(ids) for key in self._indices for ids in self.earlier.get(key, ()))
        guessing = (self.tokens + read) * self.costs.guess
        return self.costs.without_drafts(list(self._steps.values()), self._most_rows) - self._seconds - guessing


class Speculator:
    """Starts the drafts of each request, and keeps what later requests need."""

    def __init__(self):
        self.rates = Rates()
        self.costs: PassCosts | None = None
        self.earlier: dict[int, list[array]] = {}  # the oldest prompt first
        self.remembered = 0  # tokens in `earlier`
        self.pause = self.last_pause = 0  # requests without a guess: from now on, and the last time
        self._sums = dict.fromkeys(("drafted", "passes", "tokens"), 0)

    def begin(self, measure: Callable[[], PassCosts]) -> Drafts:
        """Starts a request.

        Args:
            measure (`Callable`): Measures what passes cost; called once.
        """
        if self.costs is None:
            self.costs = measure()
        sleeps = self.pause > 0
        self.pause -= sleeps
        return Drafts(self.rates, None if sleeps else self.costs, self.earlier)

    def end(self, drafts: Drafts) -> None:
        """Takes what a request leaves, and pauses if guessing cost more than drafts saved."""
        for name in self._sums:
            self._sums[name] += getattr(drafts, name)
        if drafts.costs is not None:
            pays = drafts.saved() > 0
            self.pause = self.last_pause = 0 if pays else min(_LONGEST_PAUSE, max(1, 2 * self.last_pause))
        new: dict[int, list[array]] = {}
        for key, ids in drafts.completions.values():
            new.setdefault(key, []).append(ids)
        for key, completions in new.items():
            self._remember(key, completions)

    def _remember(self, key: int, completions: list[array]) -> None:
        old = self.earlier.pop(key, [])
        self.remembered -= sum(map(len, old))
        self.earlier[key] = kept = [*completions, *old][:_PER_PROMPT]
        self.remembered += sum(map(len, kept))
        while self.remembered > MOST_REMEMBERED and len(self.earlier) > 1:
            oldest = next(iter(self.earlier))
            self.remembered -= sum(map(len, self.earlier.pop(oldest)))

    def measured(self) -> dict[str, tuple[float, float]]:
        """Sums since the last call, see [`RolloutEngine.measured`]."""
        drafted, passes, tokens = self._sums.values()
        self._sums = dict.fromkeys(self._sums, 0)
        return {"rollout/acceptance": (tokens - passes, drafted), "rollout/tokens_per_pass": (tokens, passes)}

    def state_dict(self) -> dict[str, Any]:
        """What a run that goes on needs, so that its drafts are those of a run that never stopped."""
        completions = [ids for kept in self.earlier.values() for ids in kept]
        return {
            "rates": self.rates.state_dict(),
            "costs": None if self.costs is None else self.costs.state_dict(),
            "pauses": [self.pause, self.last_pause],
            "prompts": list(self.earlier),
            "counts": [len(kept) for kept in self.earlier.values()],
            "lengths": [len(ids) for ids in completions],
            "ids": torch.tensor([token for ids in completions for token in ids], dtype=torch.int32),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.rates.load_state_dict(state["rates"])
        self.costs = None if state["costs"] is None else PassCosts(**state["costs"])
        self.pause, self.last_pause = state["pauses"]
        completions = iter([array("i", ids.tolist()) for ids in state["ids"].split(state["lengths"])])
        counts = zip(state["prompts"], state["counts"], strict=True)
        self.earlier = {key: [next(completions) for _ in range(count)] for key, count in counts}
        self.remembered = len(state["ids"])


def key_of(prompt_ids: Sequence[int]) -> int:
    """A prompt by its tokens, the same in every process."""
    return hash(tuple(prompt_ids))
