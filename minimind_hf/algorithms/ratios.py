# SPDX-License-Identifier: Apache-2.0
"""Probability ratios and divergence estimates per token, safe in float32.

A log ratio is unbounded: if the reference is certain of a token that the policy has almost forgotten, it can reach
hundreds, and `exp` overflows float32 at 89. Instead of cutting the exponential off, it is continued along its tangent:
such a token still has a gradient, and gradient clipping can handle its size.
"""

import math

import torch
from torch import Tensor

from .masking import masked_mean

# exp(30) is 1e13, far beyond any meaningful ratio, yet its square (in a gradient norm) and the sum of millions of
# squares still fit into float32 (3e38).
EXP_LINEAR_FROM = 30.0


def bounded_exp(x: Tensor) -> Tensor:
    """`exp(x)` up to 30, then its tangent at 30, so that value and gradient stay finite in float32.

    Args:
        x (`Tensor`): Log ratios.

    Returns:
        `Tensor` of the shape and dtype of `x`.
    """
    return torch.exp(x.clamp(max=EXP_LINEAR_FROM)) * (1 + torch.relu(x - EXP_LINEAR_FROM))


def sequence_log_ratio(logps: Tensor, old_logps: Tensor, mask: Tensor) -> Tensor:
    """The log ratio of a whole completion divided by its length: the mean of `new - old` over its valid tokens
    ([GSPO](https://arxiv.org/abs/2507.18071)).

    Args:
        logps (`Tensor` of shape `(N, C)`): Log-probabilities under the policy.
        old_logps (`Tensor` of shape `(N, C)`): Log-probabilities at sampling time.
        mask (`Tensor` of shape `(N, C)`): Valid tokens.

    Returns:
        `Tensor` of shape `(N, C)`: The same value for all tokens of a row.
    """
    return masked_mean(logps - old_logps, mask, dim=1)[:, None].expand_as(logps)


def sequence_token_log_ratio(logps: Tensor, old_logps: Tensor, mask: Tensor) -> Tensor:
    """[`sequence_log_ratio`] in value, each token's own log-probability in gradient: GSPO-token, equation (13) of
    [GSPO](https://arxiv.org/abs/2507.18071), which lets the tokens of a completion have different advantages.

    Args and returns as [`sequence_log_ratio`].
    """
    return sequence_log_ratio(logps.detach(), old_logps, mask) + (logps - logps.detach())


def k3(logps: Tensor, ref_logps: Tensor) -> Tensor:
    """The k3 estimate of `KL(policy || reference)` for each token: `exp(d) - d - 1`, `d = ref - new`.

    It is unbiased for tokens sampled from the policy, and never negative
    ([Schulman, Approximating KL Divergence](http://joschu.net/blog/kl-approx.html)). As in [`bounded_exp`], `exp` is
    continued linearly beyond 30.

    Args:
        logps (`Tensor`): Log-probabilities under the policy.
        ref_logps (`Tensor` of the shape of `logps`): Log-probabilities under the reference.

    Returns:
        `Tensor` of the shape and dtype of `logps`.
    """
    d = ref_logps - logps
    within = d.clamp(max=EXP_LINEAR_FROM)
    # expm1(d) - d keeps the digits that exp(d) - d - 1 loses near d = 0, where training spends its time.
    return torch.expm1(within) - within + math.expm1(EXP_LINEAR_FROM) * torch.relu(d - EXP_LINEAR_FROM)


@torch.no_grad()
def approx_kl(logps: Tensor, old_logps: Tensor, mask: Tensor) -> Tensor:
    """How far the policy has moved since sampling: mean of `0.5 * (new - old)^2` over the valid tokens."""
    return masked_mean(0.5 * (logps - old_logps) ** 2, mask)


@torch.no_grad()
def clip_fraction(logps: Tensor, old_logps: Tensor, mask: Tensor, clip_epsilon: float) -> Tensor:
    """Share of the valid tokens whose ratio is more than `clip_epsilon` away from 1."""
    outside = (bounded_exp(logps - old_logps) - 1).abs() > clip_epsilon
    return masked_mean(outside.to(logps.dtype), mask)
