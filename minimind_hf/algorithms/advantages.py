# SPDX-License-Identifier: Apache-2.0
"""Advantages of completions: each completion is compared with the others for its prompt.

Completions are prompt-major: completion i answers prompt `i // num_generations`. NaN in a signal means that the reward
function returned `None`; NaN in a total reward means that the completion is left out. Both are handled here, and an
advantage is never NaN. In a distributed run, the caller gathers the rewards of all ranks first.

A new estimator is a function and a row in `ADVANTAGES`. A custom one needs no row:
`advantage_estimator="file.py:function"`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .gae import masked_whiten
from .masking import fill_masked, masked_mean_var

SCALE_REWARDS = ("group", "batch", "none")
MULTI_OBJECTIVE_AGGREGATIONS = ("sum_then_normalize", "normalize_then_sum")


def total_rewards(signals: Tensor, weights: Tensor | Sequence[float], num_generations: int) -> Tensor:
    """Adds the weighted reward signals of each completion, leaving out completions without a comparable reward.

    A signal that is NaN for a whole group does not apply to that prompt and is skipped. A completion whose signal is
    NaN where another completion of its group has a value cannot be compared with it and is left out, as is a
    completion without any signal. A signal with weight 0 is only logged: its NaN leaves nothing out.

    Args:
        signals (`Tensor` of shape `(N, F)`): One column for each reward function, NaN where it returned `None`.
        weights (`Tensor` of shape `(F,)` or sequence of `float`): Weight of each signal.
        num_generations (`int`): Completions per prompt.

    Returns:
        `Tensor` of shape `(N,)`: The total rewards, NaN for completions that are left out.

    Raises:
        ValueError: If the shapes do not match.
    """
    weights = torch.as_tensor(weights, dtype=signals.dtype, device=signals.device)
    if signals.dim() != 2 or weights.shape != signals.shape[1:]:
        raise ValueError(
            f"`signals` must have shape (completions, signals) and `weights` one entry per signal, got "
            f"{tuple(signals.shape)} and {tuple(weights.shape)}."
        )
    _require_whole_groups(len(signals), num_generations)
    missing_reward = signals.isnan() | (weights == 0)
    by_group = missing_reward.view(len(signals) // num_generations, num_generations, signals.shape[1])
    missing = by_group & ~by_group.all(dim=1, keepdim=True)
    left_out = missing.any(dim=2).view(-1) | missing_reward.all(dim=1)

    weighted = signals.masked_fill(missing_reward, 0.0) * weights
    # Column by column, so that every row is added up in the same order: completions with equal signals then have
    # bitwise equal rewards, which is how a group without any difference is recognised.
    total = signals.new_zeros(len(signals))
    for column in weighted.unbind(dim=1):
        total = total + column
    return total.masked_fill(left_out, float("nan"))


def group_advantages(rewards: Tensor, num_generations: int, scale_rewards: str = "group", eps: float = 1e-4) -> Tensor:
    """Compares each completion with the others for its prompt: `(reward - mean) / (std + eps)`.

    The mean and the population std are taken over the group ([GRPO](https://arxiv.org/abs/2402.03300)). A group with
    fewer than two remaining rewards, or with all of them equal, carries no information and gets exactly 0.

    Args:
        rewards (`Tensor` of shape `(N,)`): Total rewards; NaN marks a completion that is left out. It gets 0 and
            counts in no statistic.
        num_generations (`int`): Completions per prompt.
        scale_rewards (`str`, *optional*, defaults to `"group"`): The divisor of the centred rewards: `"group"`, the
            std of the group; `"batch"`, the std of all rewards; `"none"`, no division, as
            [Dr. GRPO](https://arxiv.org/abs/2503.20783) proposes.
        eps (`float`, *optional*, defaults to 1e-4): Added to the std.

    Returns:
        `Tensor` of shape `(N,)`, with the dtype of `rewards`.

    Raises:
        ValueError: If the rewards are not a whole number of groups, or `scale_rewards` is unknown.
    """
    if scale_rewards not in SCALE_REWARDS:
        raise ValueError(f"`scale_rewards` must be one of {', '.join(SCALE_REWARDS)}, got {scale_rewards!r}.")
    _require_whole_groups(len(rewards), num_generations)
    grouped = rewards.view(-1, num_generations)
    kept = ~grouped.isnan()
    count = kept.sum(dim=1, keepdim=True)
    unit = _unit_of(grouped, kept, dim=1 if scale_rewards == "group" else None)  # so that no square overflows
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
    """Compares the completions of a prompt signal by signal, adds up, and normalizes the sums over the batch.

    This is how [GDPO](https://arxiv.org/abs/2601.05242) combines several rewards: each signal is centred and divided
    by its std within the group before it is weighted, so that a signal with a wide range does not drown out the
    others. The sums are then centred and divided by their std over all completions. All stds are population stds.

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


def rloo_advantages(rewards: Tensor, num_generations: int) -> Tensor:
    """Compares each completion with the mean of the others for its prompt: `reward - mean of the other G - 1`.

    The leave-one-out baseline ([RLOO](https://arxiv.org/abs/2402.14740)) does not depend on the completion that it is
    subtracted from, so the policy gradient stays unbiased.

    Args:
        rewards (`Tensor` of shape `(N,)`): Total rewards; NaN marks a completion that is left out. It gets 0 and
            counts in no mean.
        num_generations (`int`): Completions per prompt.

    Returns:
        `Tensor` of shape `(N,)`: 0 where no other completion of the prompt has a reward, and in groups whose rewards
        are all equal.

    Raises:
        ValueError: If the rewards are not a whole number of groups.
    """
    centred, count = _centred(rewards, num_generations)
    # With the mean m of all n: r - (n * m - r) / (n - 1) = (r - m) * n / (n - 1).
    return (centred * count / (count - 1).clamp(min=1)).view(-1)


def reinforce_baseline_advantages(rewards: Tensor, num_generations: int) -> Tensor:
    """Compares each completion with the mean for its prompt, and whitens over the batch.

    This is the baseline of [REINFORCE++](https://arxiv.org/abs/2501.03262): groups with larger differences keep larger
    advantages, while the step does not depend on the scale of the rewards.

    Args:
        rewards (`Tensor` of shape `(N,)`): Total rewards; NaN marks a completion that is left out. It gets 0 and
            counts in no statistic.
        num_generations (`int`): Completions per prompt.

    Returns:
        `Tensor` of shape `(N,)`, with mean 0 and population variance 1 over the kept completions (less what
        [`masked_whiten`] adds to the variance, 1e-8), or all 0.

    Raises:
        ValueError: If the rewards are not a whole number of groups.
    """
    centred, _ = _centred(rewards, num_generations)
    return masked_whiten(centred.view(-1), ~rewards.isnan())


def _centred(rewards: Tensor, num_generations: int) -> tuple[Tensor, Tensor]:
    """Rewards minus the mean of their group, `(P, G)`, and the number of kept rewards per group, `(P, 1)`."""
    _require_whole_groups(len(rewards), num_generations)
    grouped = rewards.view(-1, num_generations)
    kept = ~grouped.isnan()
    count = kept.sum(dim=1, keepdim=True)
    values = fill_masked(grouped, kept)
    centred = fill_masked(values - values.sum(dim=1, keepdim=True) / count.clamp(min=1), kept)
    return fill_masked(centred, kept & ~_without_variance(grouped, kept)), count


def zero_variance_groups(rewards: Tensor, num_generations: int) -> Tensor:
    """Marks the groups that give no gradient: all remaining rewards are equal, or fewer than two remain.

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


def _require_whole_groups(num_completions: int, num_generations: int) -> None:
    if num_generations < 1 or num_completions % num_generations:
        raise ValueError(
            f"{num_completions} completions are not a whole number of groups of num_generations={num_generations}. "
            "Pass all completions of every prompt together."
        )


def _unit_of(values: Tensor, kept: Tensor, dim: int | None = None) -> Tensor:
    """A power of two near the largest value of each group, or of all values; 1 if they are small.

    In this unit, squares and sums do not overflow. Dividing by a power of two changes no digit.
    """
    sizes = fill_masked(values, kept).abs()
    largest = sizes.amax() if dim is None else sizes.amax(dim=dim, keepdim=True)
    exponent = torch.frexp(largest).exponent.sub(1).clamp(min=0)
    return torch.ldexp(torch.ones_like(largest), exponent)


def _without_variance(grouped: Tensor, kept: Tensor) -> Tensor:
    """Whether a group keeps fewer than two rewards, or all of them are equal, `(P, G)` -> `(P, 1)`."""
    # The mean of equal numbers need not be that number in floating point (0.1, six times), so the rewards themselves
    # are compared. With nothing kept, the highest is -inf and the lowest inf.
    highest = fill_masked(grouped, kept, -float("inf")).amax(dim=1, keepdim=True)
    lowest = fill_masked(grouped, kept, float("inf")).amin(dim=1, keepdim=True)
    return highest <= lowest


@dataclass(frozen=True)
class Advantage:
    """A way to compare the completions of a prompt.

    Args:
        estimate (`Callable`): Takes rewards `(N,)`, NaN for completions that are left out, and the number of
            completions per prompt; returns advantages `(N,)`. If `scales` is not empty, it also takes `scale_rewards`.
        label (`str`): Its name in prose.
        summary (`str`): The formula, for help and docs.
        scales (`tuple[str, ...]`): Values of `scale_rewards` that it accepts, the default first. Empty: the estimator
            sets its scale itself.
    """

    estimate: Callable[..., Tensor]
    label: str
    summary: str = ""
    scales: tuple[str, ...] = ()


ADVANTAGES: dict[str, Advantage] = {
    "group": Advantage(
        group_advantages, "group-relative", "(reward - mean of the group) / std, see scale_rewards", SCALE_REWARDS
    ),
    "rloo": Advantage(rloo_advantages, "leave-one-out", "reward - mean of the others of the group"),
    "reinforce_baseline": Advantage(
        reinforce_baseline_advantages, "REINFORCE++-baseline", "reward - mean of the group, whitened over the batch"
    ),
}
