# SPDX-License-Identifier: Apache-2.0
"""Which tokens the policy's part of a loss sees, beyond the completion mask: uncertain ones, and none of a bad past.

What is left out here keeps its KL term and stays in the divisor of the loss.
"""

import torch
from torch import Tensor

from .masking import fill_masked, masked_mean, require_same_shape


@torch.no_grad()
def entropy_threshold(entropies: Tensor, top_quantile: float) -> Tensor:
    """The entropy above which the `top_quantile` share of the tokens lies
    ([Beyond the 80/20 Rule](https://arxiv.org/abs/2506.01939)).

    Args:
        entropies (`Tensor` of shape `(T,)`): Of all valid tokens, of all processes.
        top_quantile (`float`): Share of the tokens to keep; at 0 the highest alone.

    Returns:
        `Tensor`, scalar; infinity where there is no token.
    """
    if entropies.numel() == 0:
        return torch.full((), float("inf"), dtype=entropies.dtype, device=entropies.device)
    return torch.quantile(entropies, 1 - top_quantile)


def high_entropy_mask(entropy: Tensor, mask: Tensor, threshold: Tensor | float) -> Tensor:
    """Marks the valid tokens whose entropy is at least the threshold, `(N, C)` bool."""
    require_same_shape(mask, entropy=entropy)
    return mask.bool() & (fill_masked(entropy.detach(), mask) >= threshold)


@torch.no_grad()
def off_policy_mask(logps: Tensor, old_logps: Tensor, advantages: Tensor, mask: Tensor, threshold: float) -> Tensor:
    """Marks what is left when sequences are dropped that were bad and are now far from the policy.

    A sequence with a negative advantage whose mean `old - new` is above the threshold is dropped, equation (9) of
    [DeepSeek-V3.2](https://arxiv.org/abs/2512.02556).

    Args:
        logps (`Tensor` of shape `(N, C)`): Log-probabilities of the policy.
        old_logps (`Tensor` of shape `(N, C)`): Log-probabilities at sampling time.
        advantages (`Tensor` of shape `(N, C)`): Advantage of each token.
        mask (`Tensor` of shape `(N, C)`): Valid tokens.
        threshold (`float`): Above 0.

    Returns:
        `Tensor` of shape `(N, C)`, bool.
    """
    drift = masked_mean(old_logps - logps, mask, dim=1)[:, None]
    return (advantages >= 0) | (drift <= threshold)


def entropy_bonus(entropy: Tensor, mask: Tensor, denominator: Tensor | float) -> Tensor:
    """The sum of the entropies of the valid tokens by `denominator`: the mean, where that is their number.

    Args:
        entropy (`Tensor` of shape `(N, C)`): Of the sampling distribution, in nats, with a graph.
        mask (`Tensor` of shape `(N, C)`): Tokens that count.
        denominator (`Tensor` or `float`): Tokens of the whole optimizer step.

    Returns:
        `Tensor`, scalar.
    """
    divisor = torch.as_tensor(denominator, dtype=entropy.dtype, device=entropy.device)
    return fill_masked(entropy, mask).sum() / divisor.clamp(min=1)
