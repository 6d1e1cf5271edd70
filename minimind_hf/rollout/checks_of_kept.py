# SPDX-License-Identifier: Apache-2.0
"""What an engine must not return as the sets that its tokens were drawn from."""

import numpy as np

from ..forward.kept_tokens import KeptTokens
from .samples import Rollout, SamplingParams


def fault_of_kept(rollout: Rollout, vocab_size: float, sampling: SamplingParams | None) -> str | None:
    """Returns what is wrong with `rollout.kept`, of a rollout whose other fields are in order."""
    sets = rollout.kept
    if sets is None:
        return _fault_of_none(sampling)
    count = len(rollout.completion_ids)
    if not isinstance(sets, list) or len(sets) != count:
        found = f"{len(sets)} kept sets" if isinstance(sets, list) else f"kept, a {type(sets).__name__}"
        return f"{found} for {count} tokens, expected a list with an array for each"
    for place, ids in enumerate(sets):
        if not isinstance(ids, np.ndarray) or ids.ndim != 1 or ids.dtype.kind not in "iu":
            return f"kept of token {place} is {_told(ids)}, expected a numpy array of integers with one dimension"
    return _fault_of_sets(KeptTokens.of(sets), rollout, vocab_size)


def _fault_of_none(sampling: SamplingParams | None) -> str | None:
    if sampling is None or not sampling.is_truncated:
        return None
    return (
        f"it has no kept sets, but top_k={sampling.top_k}, top_p={sampling.top_p} and min_p={sampling.min_p} cut the "
        "distribution, and tokens must be scored over the set that they were drawn from. Return them as Rollout.kept "
        "(docs/rollout-engines.md), or leave top_k at 0, top_p at 1.0 and min_p unset"
    )


def _told(value: object) -> str:
    if not isinstance(value, np.ndarray):
        return f"a {type(value).__name__}"
    return f"of type {value.dtype} and shape {value.shape}"


def _fault_of_sets(kept: KeptTokens, rollout: Rollout, vocab_size: float) -> str | None:
    drawn = np.asarray(rollout.completion_ids)
    own = np.ones(len(drawn), bool) if rollout.loss_mask is None else np.asarray(rollout.loss_mask, bool)
    if len(kept.ids) and (kept.ids.min() < 0 or kept.ids.max() >= vocab_size):
        return f"kept ids from {kept.ids.min()} to {kept.ids.max()} with a vocabulary of {vocab_size}"
    if kept.bits.size and np.isfinite(vocab_size) and kept.bits.shape[1] != -(-vocab_size // 8):
        return f"kept sets of {kept.bits.shape[1]} bytes, expected one bit for each of {vocab_size} ids"
    missing = own & ~kept.holds(drawn)
    if missing.any():
        place = int(missing.argmax())
        return f"token {place} has the id {drawn[place]}, which is not in its kept set"
    return None
