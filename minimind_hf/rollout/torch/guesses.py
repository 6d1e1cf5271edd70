# SPDX-License-Identifier: Apache-2.0
"""Guesses the next token of a text from what followed its last tokens before, and measures how often guesses of each
kind are right.

A guess costs some microseconds and no pass of a model, and every token that is drawn shows whether it was right,
drafted or not. So the measured rates follow the policy at no cost, and they are what decides about drafts.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

ORDERS = (4, 2, 1)  # last tokens that an occurrence must have in common with the text
_SURE = 3  # confirmations that are counted
_RECENT = 3  # guesses of a text that tell how predictable it is at the moment
_KINDS = len(ORDERS) * (_SURE + 1) * (_RECENT + 1)
_FIRST_TRIES, _FIRST_HITS = 4.0, 0.5  # of a kind that was never measured
_MOST_TRIES = 1000.0  # then half of them are forgotten
_FIRST_DRAFTED = 20.0  # tokens of drafts as right as promised, before any was measured
_RIGHT = [bin(bits).count("1") for bits in range(1 << _RECENT)]


class Rates:
    """How often guesses of each kind were right.

    The kind of a guess is how long the occurrence before is, how often the token was confirmed there, and how many of
    the last guesses in this text were right.

    Attributes:
        promised (`float`), kept (`float`): Tokens of drafts that should have been right by these rates, and that were.
            The best of several guesses was luckier than it is.
    """

    def __init__(self):
        self.tries, self.hits = [_FIRST_TRIES] * _KINDS, [_FIRST_HITS] * _KINDS
        self.promised = self.kept = _FIRST_DRAFTED

    @property
    def trust(self) -> float:
        """What the probability of a draft is multiplied with."""
        return self.kept / self.promised

    def judge(self, promised: float, kept: int) -> None:
        """Takes how many tokens of drafts should have been right, and how many were."""
        self.promised, self.kept = self.promised + promised, self.kept + kept
        if self.promised > _MOST_TRIES:
            self.promised, self.kept = self.promised / 2, self.kept / 2

    def of(self, kind: int) -> float:
        return self.hits[kind] / self.tries[kind]

    def add(self, kind: int, is_hit: bool) -> None:
        self.tries[kind] += 1.0
        self.hits[kind] += is_hit
        if self.tries[kind] > _MOST_TRIES:
            self.tries[kind] /= 2
            self.hits[kind] /= 2

    def state_dict(self) -> dict[str, Any]:
        return deepcopy(vars(self))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        vars(self).update(deepcopy(dict(state)))


class Index:
    """What followed which tokens in the texts of a prompt: the last token that did, and how often it was confirmed."""

    def __init__(self):
        self.followers: list[dict[int, int]] = [{} for _ in ORDERS]  # by the hash of the tokens before

    def read(self, ids: Iterable[int], before: Sequence[int] = ()) -> None:
        """Learns from a text, of which `before` came earlier."""
        text = Text(self, before)
        for token in ids:
            text.add(token)


class Text:
    """A prompt and what follows it.

    Args:
        index ([`Index`]): Learns from the text, and guesses.
        ids (`Sequence[int]`): Its first tokens, which are known to the index.
    """

    def __init__(self, index: Index, ids: Sequence[int]):
        self.index, self.ids, self.recent = index, list(ids[-ORDERS[0] :]), 0

    def add(self, token: int, rates: Rates | None = None) -> None:
        """Appends a token; with `rates`, guesses of it are measured."""
        best, guess = -1.0, None
        recent = _RIGHT[self.recent]
        for number, (order, followers) in enumerate(zip(ORDERS, self.index.followers, strict=True)):
            key = hash(tuple(self.ids[-order:]))
            found = followers.get(key)
            if found is None:
                followers[key] = token << 2
                continue
            follower, sure = found >> 2, found & _SURE
            if rates is not None:
                kind = _kind(number, sure, recent)
                if (rate := rates.of(kind)) > best:
                    best, guess = rate, follower
                rates.add(kind, follower == token)
            if follower == token:
                followers[key] = found + (sure < _SURE)
            else:
                followers[key] = found - 1 if sure else token << 2
        if rates is not None:
            self.recent = (self.recent << 1 | (guess == token)) & ((1 << _RECENT) - 1)
        self.ids.append(token)

    def continued(self, most: int, least: float, rates: Rates) -> tuple[list[int], list[float]]:
        """Guesses the next tokens.

        Args:
            most (`int`): At most this many.
            least (`float`): Stops before a token that is all right, with those before it, with less than this
                probability.

        Returns:
            `(ids, probabilities)`: Of each token, that it and those before it are right.
        """
        ids, probabilities, recent, probability = self.ids[-ORDERS[0] :], [], self.recent, 1.0
        known = len(ids)
        while len(probabilities) < most:
            best, guess, right = 0.0, None, _RIGHT[recent]
            for number, (order, followers) in enumerate(zip(ORDERS, self.index.followers, strict=True)):
                found = followers.get(hash(tuple(ids[-order:])))
                if found is not None and (rate := rates.of(_kind(number, found & _SURE, right))) > best:
                    best, guess = rate, found >> 2
            probability *= best
            if guess is None or probability < least:
                break
            ids.append(guess)
            probabilities.append(probability)
            recent = (recent << 1 | 1) & ((1 << _RECENT) - 1)
        return ids[known:], probabilities


def _kind(number: int, sure: int, recent: int) -> int:
    return (number * (_SURE + 1) + sure) * (_RECENT + 1) + recent
