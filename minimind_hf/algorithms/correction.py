# SPDX-License-Identifier: Apache-2.0
"""Measures and corrects the difference between the engine's sampling distribution and the trainer's.

An engine with lower precision or older weights samples from a slightly different distribution. The importance ratio
absorbs the difference, but clipping then cuts into it, and terms without a ratio ignore it. Truncated importance
sampling ([Yao et al.](https://fengyao.notion.site/off-policy-rl)) separates the two: the ratio is taken against the
trainer's own log-probabilities, and each token is weighted by its probability under the trainer over that under the
engine.
"""

import torch
from torch import Tensor

from .masking import fill_masked, masked_mean, require_same_shape
from .ratios import bounded_exp, k3

ROLLOUT_CORRECTIONS = ("none", "truncate", "mask")


@torch.no_grad()
def correction_weights(logps: Tensor, engine_logps: Tensor, mask: Tensor, how: str, cap: float = 2.0) -> Tensor:
    """The weight of each token, `exp(trainer - engine)`, with large values truncated or masked.

    Args:
        logps (`Tensor` of shape `(N, C)`): The trainer's log-probabilities, with its weights at sampling time.
        engine_logps (`Tensor` of shape `(N, C)`): Log-probabilities from the engine that sampled the tokens.
        mask (`Tensor` of shape `(N, C)`): Valid tokens.
        how (`str`): `"truncate"`: weights above `cap` become `cap`; `"mask"`: they become 0.
        cap (`float`, *optional*, defaults to 2.0): Largest weight.

    Returns:
        `Tensor` of shape `(N, C)`, 0 outside the mask.

    Raises:
        ValueError: If `how` is unknown, `cap` is below 1, or a shape does not match the mask.
    """
    if how not in ROLLOUT_CORRECTIONS[1:]:
        raise ValueError(f"`how` must be one of {', '.join(ROLLOUT_CORRECTIONS[1:])}, got {how!r}.")
    if not cap >= 1:
        raise ValueError(f"`cap`={cap} would down-weight tokens that need no correction. Set it to 1 or more.")
    require_same_shape(mask, logps=logps, engine_logps=engine_logps)
    weights = bounded_exp(fill_masked(logps, mask) - fill_masked(engine_logps, mask))
    weights = weights.clamp(max=cap) if how == "truncate" else torch.where(weights > cap, 0.0, weights)
    return fill_masked(weights, mask)


@torch.no_grad()
def sampling_mismatch(logps: Tensor, engine_logps: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """How far the engine's log-probabilities are from the trainer's own.

    Args:
        logps (`Tensor` of shape `(N, C)`): The trainer's log-probabilities.
        engine_logps (`Tensor` of shape `(N, C)`): Log-probabilities from the engine that sampled the tokens.
        mask (`Tensor` of shape `(N, C)`): Valid tokens.

    Returns:
        `dict[str, Tensor]` of scalars: `mean` and `max` of `|engine - trainer|`; `k3`, the estimate of
        `KL(engine || trainer)`; `num_tokens`. All are 0 if no token is valid.
    """
    require_same_shape(mask, logps=logps, engine_logps=engine_logps)
    logps, engine_logps = fill_masked(logps, mask), fill_masked(engine_logps, mask)
    difference = (engine_logps - logps).abs()
    return {
        "mean": masked_mean(difference, mask),
        "max": difference.max() if difference.numel() else difference.sum(),
        "k3": masked_mean(k3(engine_logps, logps), mask),
        "num_tokens": mask.bool().sum(),
    }
