# SPDX-License-Identifier: Apache-2.0
"""Selects the tokens for the policy term of a loss: only uncertain ones, or none of bad, off-policy sequences.

Tokens that are left out here keep their KL term and still count in the divisor of the loss.
"""

import torch
from torch import Tensor

from .masking import fill_masked, masked_mean, require_same_shape


@torch.no_grad()
def entropy_threshold(entropies: Tensor, top_quantile: float) -> Tensor:
    """The entropy above which the `top_quantile` share of the tokens lies
    ([Beyond the 80/20 Rule](https://arxiv.org/abs/2506.01939)).

    Args:
        entropies (`Tensor` of shape `(T,)`): Entropies of all valid tokens of all processes; NaN is left out.
        top_quantile (`float`): Share of the tokens to keep; 0 keeps only the highest.

    Returns:
        `Tensor`, scalar; infinity, or NaN, if there is no token.
    """
    if entropies.numel() == 0:
        return torch.full((), float("inf"), dtype=entropies.dtype, device=entropies.device)
    return torch.nanquantile(entropies, 1 - top_quantile)


def high_entropy_mask(entropy: Tensor, mask: Tensor, threshold: Tensor | float) -> Tensor:
    """Marks the valid tokens whose entropy is at least the threshold, `(N, C)` bool."""
    require_same_shape(mask, entropy=entropy)
    return mask.bool() & (fill_masked(entropy.detach(), mask) >= threshold)


@torch.no_grad()
def off_policy_mask(logps: Tensor, old_logps: Tensor, advantages: Tensor, mask: Tensor, threshold: float) -> Tensor:
    """Marks the tokens to keep after dropping bad sequences that are far from the current policy.

    A sequence is dropped if its advantage is negative and its mean `old - new` is above the threshold; see equation
    (9) of [DeepSeek-V3.2](https://arxiv.org/abs/2512.02556).

    Args:
        logps (`Tensor` of shape `(N, C)`): Log-probabilities under the policy.
        old_logps (`Tensor` of shape `(N, C)`): Log-probabilities at sampling time.
        advantages (`Tensor` of shape `(N, C)`): Advantage of each token.
        mask (`Tensor` of shape `(N, C)`): Valid tokens.
        threshold (`float`): A positive number.

    Returns:
        `Tensor` of shape `(N, C)`, bool.
    """
    drift = masked_mean(old_logps - logps, mask, dim=1)[:, None]
    return (advantages >= 0) | (drift <= threshold)


def entropy_bonus(entropy: Tensor, mask: Tensor, denominator: Tensor | float) -> Tensor:
    """The sum of the entropies of the valid tokens divided by `denominator`: the mean, if that is their number.

    Args:
        entropy (`Tensor` of shape `(N, C)`): Entropy of the sampling distribution in nats, with a graph.
        mask (`Tensor` of shape `(N, C)`): Tokens that count.
        denominator (`Tensor` or `float`): Number of tokens of the whole optimizer step.

    Returns:
        `Tensor`, scalar.
    """
    divisor = torch.as_tensor(denominator, dtype=entropy.dtype, device=entropy.device)
    return fill_masked(entropy, mask).sum() / divisor.clamp(min=1)
