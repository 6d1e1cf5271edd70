# SPDX-License-Identifier: Apache-2.0
"""Per-token advantages for PPO: generalized advantage estimation from the critic's values, and whitening.

Moments add up over micro-batches and ranks, so whitening covers all tokens of a step, wherever they are.
"""

import torch
from torch import Tensor

from .masking import fill_masked, masked_mean_var, masked_sum, require_same_shape, spread_over_turns


def token_rewards(rewards: Tensor, mask: Tensor) -> Tensor:
    """Places the reward of each completion on its last valid token, or the reward of each turn on the turn's last one.

    Args:
        rewards (`Tensor` of shape `(N,)` or `(N, T)`): One reward per completion, or one per turn, which is a run of
            valid tokens; columns after the last turn are ignored.
        mask (`Tensor` of shape `(N, C)`): Valid tokens. A row without valid tokens gets no reward.

    Returns:
        `Tensor` of shape `(N, C)`, with the dtype of `rewards`, 0 everywhere else.

    Raises:
        ValueError: If there is not exactly one reward, or row of rewards, per row of the mask.
    """
    if rewards.dim() not in (1, 2) or rewards.shape[:1] != mask.shape[:1]:
        raise ValueError(
            f"`rewards` has shape {tuple(rewards.shape)}, but the mask has shape {tuple(mask.shape)}. Pass one "
            "reward, or one row of rewards by turn, per row of the mask."
        )
    mask = mask.bool()
    if rewards.dim() == 2:
        following = torch.nn.functional.pad(mask, (0, 1))[:, 1:]
        return fill_masked(spread_over_turns(rewards, mask), mask & ~following)
    valid_from_here = mask.flip(1).cumsum(dim=1).flip(1)
    return torch.where(mask & (valid_from_here == 1), rewards[:, None], 0.0)


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Generalized advantage estimation ([GAE](https://arxiv.org/abs/1506.02438)) over the valid tokens of each row.

    `delta_t = r_t + gamma * V_next - V_t` and `A_t = delta_t + gamma * lam * A_next`, where "next" is the next valid
    token of the row. Slots outside the mask, at the end (padding) or in between (such as tool turns), never bootstrap.
    After the last valid token, value and advantage are 0.

    Args:
        rewards (`Tensor` of shape `(N, C)`): Reward of each token.
        values (`Tensor` of shape `(N, C)`): The critic's value at each token.
        mask (`Tensor` of shape `(N, C)`): Valid tokens.
        gamma (`float`): Discount.
        lam (`float`): Weight of longer returns: 0 is the one-step error, 1 the full return.

    Returns:
        `(advantages, returns)`, two `Tensor` of shape `(N, C)`: `returns = advantages + values`; both are 0 outside
        the mask.
    """
    require_same_shape(mask, rewards=rewards, values=values)
    mask = mask.bool()
    values = fill_masked(values, mask)
    delta = fill_masked(fill_masked(rewards, mask) + gamma * _next_valid(values, mask) - values, mask)
    # A masked slot passes the advantage after it on unchanged.
    decay = torch.full_like(delta, gamma * lam).masked_fill(~mask, 1.0)
    advantages = fill_masked(_reversed_linear_scan(delta, decay), mask)
    return advantages, advantages + values


def masked_whiten(
    x: Tensor,
    mask: Tensor,
    eps: float = 1e-8,
    mean: Tensor | float | None = None,
    var: Tensor | float | None = None,
) -> Tensor:
    """Shifts and scales the valid values to mean 0 and population variance 1: `(x - mean) / sqrt(var + eps)`.

    Args:
        x (`Tensor`): Values.
        mask (`Tensor` of the shape of `x`): Valid slots.
        eps (`float`, *optional*, defaults to 1e-8): Added to the variance.
        mean (`Tensor` or `float`, *optional*): Mean to use if `x` is only part of the data (see [`moments`]).
        var (`Tensor` or `float`, *optional*): Population variance to use. Pass both it and `mean`, or neither.

    Returns:
        `Tensor` of the shape and dtype of `x`, 0 outside the mask.

    Raises:
        ValueError: If only one of `mean` and `var` is given.
    """
    if (mean is None) != (var is None):
        raise ValueError("`mean` and `var` belong together. Pass both (of all ranks) or neither (those of `x`).")
    x = fill_masked(x, mask)
    if mean is None:
        mean, var = masked_mean_var(x, mask)
    mean, var = (torch.as_tensor(moment, dtype=x.dtype, device=x.device) for moment in (mean, var))
    return fill_masked((x - mean) * torch.rsqrt(var + eps), mask)


def moments(x: Tensor, mask: Tensor) -> Tensor:
    """Count, sum and sum of squares of the valid values, which add up over micro-batches and ranks.

    Args:
        x (`Tensor`): Values.
        mask (`Tensor` of the shape of `x`): Valid slots.

    Returns:
        `Tensor` of shape `(3,)`, float64 (the difference of squares in [`mean_var_from_moments`] needs the precision).
    """
    x = x.detach().double()
    return torch.stack([mask.bool().sum().double(), masked_sum(x, mask), masked_sum(x**2, mask)])


def mean_var_from_moments(total: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and population variance from the summed [`moments`] of all parts; both are 0 if nothing was counted."""
    count, first, second = total.unbind()
    count = count.clamp(min=1)
    mean = first / count
    return mean, (second / count - mean**2).clamp(min=0)


def _next_valid(values: Tensor, mask: Tensor) -> Tensor:
    """The value at the next valid slot after each slot, 0 if there is none."""
    width = mask.shape[1]
    position = torch.arange(width, device=mask.device).expand_as(mask).masked_fill(~mask, width)
    end = position.new_full((len(mask), 1), width)
    following = torch.cat([position, end], dim=1)[:, 1:]
    nearest = following.flip(1).cummin(dim=1).values.flip(1)
    return torch.cat([values, values.new_zeros(len(values), 1)], dim=1).gather(1, nearest)


def _reversed_linear_scan(x: Tensor, decay: Tensor) -> Tensor:
    """Solves `y_t = x_t + decay_t * y_{t+1}` from the back, by doubling the reach: log2(C) steps instead of C."""
    reach = 1
    while reach < x.shape[1]:
        x = x + decay * _shifted_left(x, reach)
        decay = decay * _shifted_left(decay, reach)
        reach *= 2
    return x


def _shifted_left(x: Tensor, steps: int) -> Tensor:
    return torch.nn.functional.pad(x[:, steps:], (0, steps))
