# SPDX-License-Identifier: Apache-2.0
"""From rewards to advantages: group statistics (GRPO) and generalized advantage estimation (PPO).

Completions are prompt-major: completion i answers prompt `i // num_generations`. NaN in a signal stands for the
`None` of a reward function, NaN in a total reward for a completion that is left out; both are meant and handled here,
and no advantage is ever NaN. In a distributed run, the caller gathers the rewards of all ranks before calling.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .masking import fill_masked, masked_mean_var, masked_sum, require_same_shape

SCALE_REWARDS = ("group", "batch", "none")
MULTI_OBJECTIVE_AGGREGATIONS = ("sum_then_normalize", "normalize_then_sum")


def total_rewards(signals: Tensor, weights: Tensor | Sequence[float], num_generations: int) -> Tensor:
    """Adds the weighted reward signals of each completion, leaving out those that were not scored.

    A signal that is NaN for a whole group does not apply to that prompt and is skipped. A completion that has NaN in
    a signal which scored another completion of its group cannot be compared with that one: it is left out, as is one
    without any signal. A signal of weight 0 is for the log alone: its NaN leaves nothing out.

    Args:
        signals (`Tensor` of shape `(N, F)`): One column for each reward function, NaN where it returned `None`.
        weights (`Tensor` of shape `(F,)` or sequence of `float`): Weight of each signal.
        num_generations (`int`): Completions per prompt.

    Returns:
        `Tensor` of shape `(N,)`: The total rewards, NaN for completions that are left out.

    Raises:
        ValueError: If the shapes do not fit each other.
    """
    weights = torch.as_tensor(weights, dtype=signals.dtype, device=signals.device)
    if signals.dim() != 2 or weights.shape != signals.shape[1:]:
        raise ValueError(
            f"`signals` must have shape (completions, signals) and `weights` one entry for each signal, got "
            f"{tuple(signals.shape)} and {tuple(weights.shape)}."
        )
    _require_whole_groups(len(signals), num_generations)
    unscored = signals.isnan() | (weights == 0)
    by_group = unscored.view(-1, num_generations, signals.shape[1])
    missing = by_group & ~by_group.all(dim=1, keepdim=True)
    left_out = missing.any(dim=2).view(-1) | unscored.all(dim=1)

    weighted = signals.masked_fill(unscored, 0.0) * weights
    # Column by column, so that the order of the additions is the same in every row: completions with equal signals
    # then have bitwise equal rewards, by which a group without any difference is recognised.
    total = signals.new_zeros(len(signals))
    for column in weighted.unbind(dim=1):
        total = total + column
    return total.masked_fill(left_out, float("nan"))


def group_advantages(rewards: Tensor, num_generations: int, scale_rewards: str = "group", eps: float = 1e-4) -> Tensor:
    """Compares each completion with the others of its prompt: `(reward - mean) / (std + eps)`.

    Mean and population std are those of the group ([GRPO](https://arxiv.org/abs/2402.03300)). A group whose remaining
    rewards are all equal, or that has fewer than two of them, says nothing and gets exactly 0.

    Args:
        rewards (`Tensor` of shape `(N,)`): Total rewards; NaN marks a completion that is left out. It gets 0 and
            enters no statistic.
        num_generations (`int`): Completions per prompt.
        scale_rewards (`str`, *optional*, defaults to `"group"`): What the centred rewards are divided by: `"group"`,
            the std of the group; `"batch"`, the std of all rewards; `"none"`, nothing, as
            [Dr. GRPO](https://arxiv.org/abs/2503.20783) proposes.
        eps (`float`, *optional*, defaults to 1e-4): Added to the std.

    Returns:
        `Tensor` of shape `(N,)`, of the dtype of `rewards`.

    Raises:
        ValueError: If the rewards are no whole number of groups or `scale_rewards` is unknown.
    """
    if scale_rewards not in SCALE_REWARDS:
        raise ValueError(f"`scale_rewards` must be one of {', '.join(SCALE_REWARDS)}, got {scale_rewards!r}.")
    _require_whole_groups(len(rewards), num_generations)
    grouped = rewards.view(-1, num_generations)
    kept = ~grouped.isnan()
    count = kept.sum(dim=1, keepdim=True)
    unit = _unit_of(grouped, kept, dim=1 if scale_rewards == "group" else None)
    in_units = fill_masked(grouped, kept) / unit
    mean = in_units.sum(dim=1, keepdim=True) / count.clamp(min=1)
    centred = fill_masked(in_units - mean, kept)

    if scale_rewards == "group":
        centred = centred / ((centred**2).sum(dim=1, keepdim=True) / count.clamp(min=1)).sqrt().add(eps / unit)
    elif scale_rewards == "batch":
        centred = centred / masked_mean_var(in_units, kept)[1].sqrt().add(eps / unit)
    else:
        centred = centred * unit

    return fill_masked(centred, kept & ~_without_variance(grouped, kept)).view(-1)


def decoupled_advantages(
    signals: Tensor, weights: Tensor | Sequence[float], num_generations: int, eps: float = 1e-4
) -> Tensor:
    """Compares the completions of a prompt signal by signal, adds up, and scales what comes out over the batch.

    The [GDPO](https://arxiv.org/abs/2601.05242) way with several rewards: each signal is centred and divided by its
    std within the group before it is weighed, so that one of a wide range does not drown the others. The sums are
    centred and divided by their std over all completions. Stds are population stds.

    Args:
        signals (`Tensor` of shape `(N, F)`): One column for each reward function, NaN where it returned `None`.
        weights (`Tensor` of shape `(F,)` or sequence of `float`): Weight of each signal.
        num_generations (`int`): Completions per prompt.
        eps (`float`, *optional*, defaults to 1e-4): Added to each std.

    Returns:
        `Tensor` of shape `(N,)`: 0 for completions that [`total_rewards`] leaves out.
    """
    kept = ~total_rewards(signals, weights, num_generations).isnan()
    total = signals.new_zeros(len(signals))
    for signal, weight in zip(signals.unbind(dim=1), torch.as_tensor(weights).tolist(), strict=True):
        if weight:
            comparable = signal.masked_fill(~kept, float("nan"))
            total = total + weight * group_advantages(comparable, num_generations, "group", eps)
    unit = _unit_of(total, kept)
    mean, variance = masked_mean_var(total / unit, kept)
    return fill_masked((total / unit - mean) / (variance.sqrt() + eps / unit), kept)


def zero_variance_groups(rewards: Tensor, num_generations: int) -> Tensor:
    """Tells the groups that give no gradient: all remaining rewards equal, or fewer than two of them.

    Args:
        rewards (`Tensor` of shape `(N,)`): Total rewards; NaN marks a completion that is left out.
        num_generations (`int`): Completions per prompt.

    Returns:
        `Tensor` of shape `(N // num_generations,)`, bool.
    """
    _require_whole_groups(len(rewards), num_generations)
    grouped = rewards.view(-1, num_generations)
    kept = ~grouped.isnan()
    return _without_variance(grouped, kept).view(-1)


def token_rewards(scores: Tensor, mask: Tensor) -> Tensor:
    """Places the score of each completion on its last valid token.

    Args:
        scores (`Tensor` of shape `(N,)`): One score for each completion.
        mask (`Tensor` of shape `(N, C)`): Valid tokens. A row without any receives no score.

    Returns:
        `Tensor` of shape `(N, C)`, of the dtype of `scores`, 0 everywhere else.
    """
    if scores.shape != mask.shape[:1]:
        raise ValueError(f"`scores` has shape {tuple(scores.shape)}, the mask {tuple(mask.shape)}: one score a row.")
    mask = mask.bool()
    valid_from_here = mask.flip(1).cumsum(dim=1).flip(1)
    return torch.where(mask & (valid_from_here == 1), scores[:, None], 0.0)


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Generalized advantage estimation ([GAE](https://arxiv.org/abs/1506.02438)) over the valid tokens of each row.

    `delta_t = r_t + gamma * V_next - V_t` and `A_t = delta_t + gamma * lam * A_next`, where "next" is the next valid
    token of the row: slots outside the mask, at the end (padding) or in between (such as tool turns), never bootstrap,
    and behind the last valid token there is nothing (value and advantage 0).

    Args:
        rewards (`Tensor` of shape `(N, C)`): Reward of each token.
        values (`Tensor` of shape `(N, C)`): The critic's value at each token.
        mask (`Tensor` of shape `(N, C)`): Valid tokens.
        gamma (`float`): Discount.
        lam (`float`): Weight of the longer returns: 0 is the one-step error, 1 the whole return.

    Returns:
        `(advantages, returns)`, two `Tensor` of shape `(N, C)`: `returns = advantages + values`; both are 0 outside
        the mask.
    """
    require_same_shape(mask, rewards=rewards, values=values)
    mask = mask.bool()
    values = fill_masked(values, mask)
    delta = fill_masked(fill_masked(rewards, mask) + gamma * _next_valid(values, mask) - values, mask)
    # A masked slot hands the advantage behind it on unchanged.
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
        mean (`Tensor` or `float`, *optional*): Mean to use, where `x` is but a part of the data (see [`moments`]).
        var (`Tensor` or `float`, *optional*): Population variance to use. Given with `mean`, or not at all.

    Returns:
        `Tensor` of the shape and dtype of `x`, 0 outside the mask.

    Raises:
        ValueError: If only one of `mean` and `var` is given.
    """
    if (mean is None) != (var is None):
        raise ValueError("`mean` and `var` belong together: give both (of all ranks) or neither (of `x` alone).")
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
        `Tensor` of shape `(3,)`, float64 (the difference of squares in [`mean_var_from_moments`] needs the digits).
    """
    x = x.detach().double()
    return torch.stack([mask.bool().sum().double(), masked_sum(x, mask), masked_sum(x**2, mask)])


def mean_var_from_moments(total: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and population variance from the added [`moments`] of all parts; both 0 where nothing was counted."""
    count, first, second = total.unbind()
    count = count.clamp(min=1)
    mean = first / count
    return mean, (second / count - mean**2).clamp(min=0)


def _require_whole_groups(num_completions: int, num_generations: int) -> None:
    if num_generations < 1 or num_completions % num_generations:
        raise ValueError(
            f"{num_completions} completions are no whole number of groups of num_generations={num_generations}. "
            "Pass all completions of every prompt together."
        )


def _unit_of(values: Tensor, kept: Tensor, dim: int | None = None) -> Tensor:
    """A power of two near the largest value of each group or of all, 1 for small ones.

    Counted in it, squares and sums do not overflow; and since it is a power of two, no digit changes.
    """
    sizes = fill_masked(values, kept).abs()
    largest = sizes.amax() if dim is None else sizes.amax(dim=dim, keepdim=True)
    exponent = torch.frexp(largest).exponent.sub(1).clamp(min=0)
    return torch.ldexp(torch.ones_like(largest), exponent)


def _without_variance(grouped: Tensor, kept: Tensor) -> Tensor:
    """Whether fewer than two rewards of a group are kept, or all of them are equal, `(P, G)` -> `(P, 1)`."""
    # The mean of equal numbers need not be that number in floating point (0.1, six times), so the rewards themselves
    # are compared. With nothing kept, the highest is -inf and the lowest inf.
    highest = fill_masked(grouped, kept, -float("inf")).amax(dim=1, keepdim=True)
    lowest = fill_masked(grouped, kept, float("inf")).amin(dim=1, keepdim=True)
    return highest <= lowest


def _next_valid(values: Tensor, mask: Tensor) -> Tensor:
    """The value at the next valid slot behind each slot, 0 where there is none."""
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
