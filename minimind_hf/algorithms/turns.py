# SPDX-License-Identifier: Apache-2.0
"""Advantages of episodes of several turns that have their own rewards.

Tensors of turns have shape `(N, T)`, for N episodes of at most T turns. Which tokens belong to a turn is in `masking`.
"""

import torch
from torch import Tensor

from .advantages import SCALE_REWARDS, rloo_advantages
from .masking import fill_masked, length_mask


def turn_returns(rewards: Tensor, lengths: Tensor, discount: float = 1.0) -> Tensor:
    """Rewards-to-go: `G(t) = sum over s >= t of discount^(s - t) * r(s)`; 0 after the last turn.

    Args:
        rewards (`Tensor` of shape `(N, T)`): Reward of each turn, padded with anything.
        lengths (`Tensor` of shape `(N,)`): Turns of each episode.
        discount (`float`, *optional*, defaults to 1.0): Weight of a reward one turn later.

    Returns:
        `Tensor` of shape `(N, T)`.
    """
    rewards = fill_masked(rewards, length_mask(lengths, rewards.shape[1]))
    returns = torch.zeros_like(rewards)
    following = rewards.new_zeros(len(rewards))
    for turn in reversed(range(rewards.shape[1])):
        following = rewards[:, turn] + discount * following
        returns[:, turn] = following
    return returns


def turn_advantages(
    rewards: Tensor,
    lengths: Tensor,
    num_generations: int,
    discount: float = 1.0,
    scale_rewards: str = "none",
    eps: float = 1e-4,
) -> Tensor:
    """Compares the reward-to-go of each turn with that of the other episodes for the same prompt.

    `A_i(t) = G_i(t) - mean over the other episodes j of G_j(min(t, last turn of j))`. The baseline has as many terms
    whatever episode i decides, and none of them depends on it, so the policy gradient stays unbiased. (The mean over
    those episodes that reach turn t would be biased: whether i is compared at all would depend on what others did.)
    With a reward on the last turn only and no discount, every turn gets [`rloo_advantages`] of the total rewards.

    Args:
        rewards (`Tensor` of shape `(N, T)`): Reward of each turn, padded with anything; episodes are prompt-major. An
            episode with NaN in one of its turns, or without a turn, is left out: it counts in no baseline and gets 0.
        lengths (`Tensor` of shape `(N,)`): Turns of each episode.
        num_generations (`int`): Episodes per prompt.
        discount (`float`, *optional*, defaults to 1.0): Weight of a reward one turn later.
        scale_rewards (`str`, *optional*, defaults to `"none"`): The divisor, one for all turns of a group: `"group"`,
            the std of the rewards-to-go around the mean of their turn; `"batch"`, their std around the mean of all;
            `"none"`, no division. Every episode counts alike, and for it every turn up to the longest episode's, an
            episode that has ended with its last turn. So with a reward on the last turn only and no discount, these
            are the population stds of the total rewards that [`group_advantages`] divides by.
        eps (`float`, *optional*, defaults to 1e-4): Added to the std.

    Returns:
        `Tensor` of shape `(N, T)`, with the dtype of `rewards`: 0 after the last turn, for episodes that are left
        out or have no other to be compared with, and where all rewards-to-go that are compared are equal.

    Raises:
        ValueError: If the shapes do not match, the episodes are not a whole number of groups, or `scale_rewards` is
            unknown.
    """
    if rewards.dim() != 2 or lengths.shape != rewards.shape[:1]:
        raise ValueError(
            f"`rewards` must have shape (episodes, turns) and `lengths` one entry per episode, got "
            f"{tuple(rewards.shape)} and {tuple(lengths.shape)}."
        )
    if scale_rewards not in SCALE_REWARDS:
        raise ValueError(f"`scale_rewards` must be one of {', '.join(SCALE_REWARDS)}, got {scale_rewards!r}.")
    wide = rewards.double()  # the squares of float32 rewards need the range
    own = length_mask(lengths, rewards.shape[1])
    left_out = (wide.isnan() & own).any(dim=1) | (lengths == 0)
    last = (lengths - 1).clamp(min=0)[:, None]
    steps = torch.arange(rewards.shape[1], device=rewards.device)
    aligned = turn_returns(wide, lengths, discount).gather(1, torch.minimum(steps, last))
    aligned = aligned.masked_fill(left_out[:, None], float("nan"))
    columns = [rloo_advantages(column, num_generations) for column in aligned.unbind(dim=1)]
    advantages = torch.stack(columns, dim=1) if columns else torch.zeros_like(wide)
    if scale_rewards != "none" and columns:
        reached = torch.where(left_out, 0, lengths).view(-1, num_generations).amax(dim=1)  # turns of the longest
        spread = _spread(aligned, reached, num_generations, scale_rewards)
        advantages = advantages / (spread + eps)[:, None]
    return fill_masked(advantages, own & ~left_out[:, None]).to(rewards.dtype)


def _spread(aligned: Tensor, reached: Tensor, num_generations: int, over: str) -> Tensor:
    """The std that divides the advantages of each episode, `(N,)`; see [`turn_advantages`]."""
    values = aligned.view(-1, num_generations, aligned.shape[1])
    counted = ~values.isnan() & length_mask(reached, aligned.shape[1])[:, None]
    values = fill_masked(values, counted)
    # Every episode weighs 1, shared equally by the turns of its group.
    weights = counted.to(values) / reached.clamp(min=1)[:, None, None]
    if over == "group":
        mean = values.sum(dim=1, keepdim=True) / counted.sum(dim=1, keepdim=True).clamp(min=1)
        episodes = weights.sum(dim=(1, 2))
        variance = (weights * (values - mean) ** 2).sum(dim=(1, 2)) / episodes.clamp(min=1)
    else:
        episodes = weights.sum().clamp(min=1)
        mean = (weights * values).sum() / episodes
        variance = ((weights * (values - mean) ** 2).sum() / episodes).expand(len(values))
    return variance.sqrt().repeat_interleave(num_generations)
