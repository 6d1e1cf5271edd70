# SPDX-License-Identifier: Apache-2.0
"""Truncated sampling on a server: the tokens that `top_k` kept, from the server's top log-probabilities.

A server's log-probabilities are those of the whole distribution, whatever it draws from. With `top_k` alone, the most
likely tokens are what it draws from, so their log-probabilities give the rest. It applies `top_p` in another order and
precision, so which tokens that kept cannot be told from outside.
"""

from collections.abc import Sequence

import numpy as np

from ..samples import SamplingParams

_TIE = 1e-3  # in nats: a token that is equally likely to the last of the top may stand in its place


def check_truncation(sampling: SamplingParams) -> None:
    """Refuses truncation whose sets a server does not tell.

    Raises:
        ValueError: With the setting, its value and what to do.
    """
    for name, value, off in (("top_p", sampling.top_p, 1.0), ("min_p", sampling.min_p, 0.0)):
        if value != off:
            raise ValueError(
                f"{name}={value} on an SGLang server: the server does not tell which tokens it kept, and they must be "
                f"scored over these. Leave {name} at {off} and set top_k, or use rollout_engine='torch'."
            )


def over_top_k(drawn: Sequence[Sequence], top: Sequence[Sequence], top_k: int) -> tuple[list[float], list[np.ndarray]]:
    """Log-probabilities over the tokens that `top_k` kept, and these.

    Args:
        drawn (`Sequence`): `(log-probability, id, ...)` of each token, over the whole vocabulary.
        top (`Sequence`): The same of the `top_k` most likely tokens at each place.

    Raises:
        ValueError: If the tops do not belong to the tokens.
    """
    if len(top) != len(drawn):
        raise ValueError(f"{len(top)} lists of top log-probabilities for {len(drawn)} tokens")
    found = [_over(own, entries, top_k, place) for place, (own, entries) in enumerate(zip(drawn, top, strict=True))]
    return [logp for logp, _ in found], [ids for _, ids in found]


def _over(own: Sequence, entries: Sequence[Sequence] | None, top_k: int, place: int) -> tuple[float, np.ndarray]:
    best = {entry[1]: entry[0] for entry in entries or ()}
    if not best or len(best) > top_k:
        raise ValueError(f"{len(best)} top log-probabilities at token {place}, expected up to top_k={top_k}")
    if own[1] not in best:
        if own[0] < min(best.values()) - _TIE:
            raise ValueError(
                f"token {place} with the id {own[1]} and a log-probability of {own[0]:.4f}, which is below all of its "
                f"top_k={top_k} (the least has {min(best.values()):.4f}): it was not drawn from these"
            )
        best[own[1]] = own[0]
    normalizer = np.logaddexp.reduce(np.array(list(best.values()), dtype=np.float64))
    return min(0.0, float(own[0] - normalizer)), np.array(list(best), dtype=np.int32)
