# SPDX-License-Identifier: Apache-2.0
"""The losses of PPO, for the policy and the critic: tensors in, `(loss, metrics)` out, as in `losses`."""

import torch
from torch import Tensor

from .aggregation import aggregate
from .losses import clean_inputs, ratio_metrics, weigh_tokens
from .masking import fill_masked, masked_mean, masked_mean_var
from .objectives import LossInputs, grpo_token_loss
from .ratios import clip_fraction, k3


def ppo_policy_loss(
    inputs: LossInputs,
    *,
    clip_epsilon: float = 0.2,
    kl_coef: float = 0.02,
    loss_aggregation: str = "token",
    max_completion_length: int | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The policy loss of [PPO](https://arxiv.org/abs/1707.06347), `max(-A * ratio, -A * clamp(ratio))`, plus
    `kl_coef * k3` against the reference.

    Args:
        inputs ([`LossInputs`]): N completions of at most C tokens.
        clip_epsilon (`float`, *optional*, defaults to 0.2): Distance of both clips from 1.
        kl_coef (`float`, *optional*, defaults to 0.02): Weight of the KL term.
        loss_aggregation, max_completion_length: See [`aggregate`]. PPO averages over tokens.

    Returns:
        `(loss, metrics)`. Metrics: `policy_loss` (the aggregated surrogate without the KL term), `ratio_mean`,
        `approx_kl`, `clip_fraction`, `kl_ref` (with a reference), `num_tokens`.

    Raises:
        ValueError: If a shape does not match the mask, or `kl_coef` is not 0 and there is no reference.
    """
    inputs = clean_inputs(inputs, "kl_coef", kl_coef)
    logps, old_logps, mask = inputs.logps, inputs.old_logps, inputs.mask
    over = {
        "how": loss_aggregation,
        "denominator": inputs.denominator,
        "max_completion_length": max_completion_length,
    }
    per_token = grpo_token_loss(logps, old_logps, inputs.advantages, clip_epsilon)
    surrogate = aggregate(weigh_tokens(per_token, inputs), mask, **over)
    metrics = ratio_metrics(inputs)
    metrics["policy_loss"] = surrogate.detach()
    metrics["clip_fraction"] = clip_fraction(logps, old_logps, mask, clip_epsilon)
    if not kl_coef:
        return surrogate, metrics
    return surrogate + kl_coef * aggregate(k3(logps, inputs.ref_logps), mask, **over), metrics


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    *,
    cliprange_value: float = 0.2,
    loss_aggregation: str = "token",
    denominator: Tensor | float | None = None,
    max_completion_length: int | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped value loss, `0.5 * max((v - ret)^2, (clamp(v, v_old +- cliprange_value) - ret)^2)`.

    Args:
        values (`Tensor` of shape `(N, C)`): Values of the critic, with a graph.
        old_values (`Tensor` of shape `(N, C)`): Values at sampling time.
        returns (`Tensor` of shape `(N, C)`): Targets, from [`gae`].
        mask (`Tensor` of shape `(N, C)`): Valid tokens.
        cliprange_value (`float`, *optional*, defaults to 0.2): How far a value can move before its gradient becomes 0.
        loss_aggregation, denominator, max_completion_length: See [`aggregate`]. PPO averages over tokens.

    Returns:
        `(loss, metrics)`. Metrics: `value_clip_fraction` (share of tokens where the clamped value decides),
        `num_tokens`.

    Raises:
        ValueError: If a shape does not match the mask.
    """
    values = fill_masked(values, mask)
    old_values, returns = fill_masked(old_values.detach(), mask), fill_masked(returns.detach(), mask)
    clamped = old_values + (values - old_values).clamp(-cliprange_value, cliprange_value)
    plain_error, clamped_error = (values - returns) ** 2, (clamped - returns) ** 2
    per_token = 0.5 * torch.max(plain_error, clamped_error)
    loss = aggregate(per_token, mask, loss_aggregation, denominator, max_completion_length)
    decided = (clamped_error > plain_error).to(values.dtype)
    return loss, {"value_clip_fraction": masked_mean(decided, mask), "num_tokens": mask.bool().sum()}


@torch.no_grad()
def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """Share of the variance of the returns that the values explain, `1 - Var(ret - v) / Var(ret)`.

    A perfect critic has 1, a critic as good as a constant 0, a worse one less than 0. If the returns do not vary, the
    result is 1 if the values match them up to a constant, and 0 otherwise.

    Args:
        values (`Tensor`): Values of the critic.
        returns (`Tensor` of the shape of `values`): Targets.
        mask (`Tensor` of the shape of `values`): Valid tokens.

    Returns:
        `Tensor`, scalar.
    """
    unexplained = masked_mean_var(returns - values, mask)[1]
    spread = masked_mean_var(returns, mask)[1]
    share = unexplained / torch.where(spread == 0, 1.0, spread)
    return 1 - torch.where(spread == 0, (unexplained > 0).to(share.dtype), share)
