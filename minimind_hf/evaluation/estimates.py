# SPDX-License-Identifier: Apache-2.0
"""Statistics over prompts. Completions of one prompt are not independent, so every value here is that of a prompt."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

import torch

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over prompts with its confidence interval.

    Args:
        mean (`float`): The mean.
        low (`float`), high (`float`): Bounds of the interval.
        prompts (`int`): Number of prompts in the mean: those to which the signal applies.
    """

    mean: float
    low: float
    high: float
    prompts: int

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out 0: a difference that chance alone would hardly make."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {(self.high - self.low) / 2:.3f}"


def estimate(values: Sequence[float]) -> Estimate | None:
    """Returns the mean of independent values with a 95 % interval, by the normal approximation.

    Args:
        values (`Sequence[float]`): One value per prompt; NaN is skipped.

    Returns:
        [`Estimate`], or `None` if there is no value. For a single value, the interval is unbounded.
    """
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return None
    mean, count = fmean(known), len(known)
    half = math.inf
    if count > 1:
        half = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) * stdev(known) / math.sqrt(count)
    return Estimate(mean, mean - half, mean + half, count)


def pass_at_k(samples: int, solved: int, k: int) -> float:
    """Probability that at least one of `k` completions of a prompt solves it, estimated without bias.

    Of all choices of `k` among the completions at hand, this is the share with a solved one: `1 - C(n-c, k) / C(n, k)`
    (Chen et al. 2021, https://arxiv.org/abs/2107.03374, eq. 1), in whole numbers, so exact for any `n`.

    Args:
        samples (`int`): Completions of the prompt, `n`.
        solved (`int`): How many of them solve it, `c`.
        k (`int`): At most `n`.

    Raises:
        ValueError: If `k` completions cannot be chosen, or more are solved than there are.
    """
    if not 1 <= k <= samples or not 0 <= solved <= samples:
        raise ValueError(f"pass@{k} of {solved} solved among {samples} completions: k must be from 1 to {samples}.")
    return 1 - math.comb(samples - solved, k) / math.comb(samples, k)


def passes_by_prompt(rewards: torch.Tensor, threshold: float, k: int) -> list[float]:
    """[`pass_at_k`] of every prompt.

    Args:
        rewards (`torch.Tensor` of shape `(P, samples)`): NaN for completions that have none.
        threshold (`float`): A completion is solved if its reward is at least this, in float32 as rewards are.
        k (`int`): At most `samples`.

    Returns:
        `list[float]`: NaN for a prompt with fewer than `k` rewards.
    """
    solved = (rewards.float() >= torch.tensor(threshold, dtype=torch.float32)).sum(dim=1).tolist()
    known = (~rewards.isnan()).sum(dim=1).tolist()
    return [pass_at_k(n, c, k) if n >= k else math.nan for n, c in zip(known, solved, strict=True)]
