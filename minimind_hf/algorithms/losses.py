# SPDX-License-Identifier: Apache-2.0
"""The losses of GRPO, CISPO and PPO: tensors in, `(loss, metrics)` out.

Log-probabilities are those of the sampling distribution, `(N, C)`, and should be float32 or wider. Every argument but
`logps` and `values` is taken as a constant. Slots outside the mask are replaced before any arithmetic. Metrics are
detached scalars, means over the valid tokens of the batch, with their number as `num_tokens`: to combine micro-batches
or ranks, weigh by it.
"""

import torch
from torch import Tensor

from .aggregation import LOSS_AGGREGATIONS, aggregate, loss_denominator
from .loss_types import LOSS_TYPES, resolve_epsilon_high, resolve_loss_type
from .masking import fill_masked, masked_mean, masked_mean_var, require_same_shape
from .ratios import approx_kl, bounded_exp, clip_fraction, k3, sequence_log_ratio
from .token_choice import off_policy_mask

__all__ = [
    "LOSS_AGGREGATIONS",
    "IMPORTANCE_SAMPLING_LEVELS",
    "LOSS_TYPES",
    "aggregate",
    "approx_kl",
    "bounded_exp",
    "cispo_token_loss",
    "clip_fraction",
    "explained_variance",
    "grpo_token_loss",
    "k3",
    "loss_denominator",
    "policy_loss",
    "ppo_policy_loss",
    "resolve_epsilon_high",
    "value_loss",
]

IMPORTANCE_SAMPLING_LEVELS = ("token", "sequence")


def grpo_token_loss(
    logps: Tensor,
    old_logps: Tensor,
    advantages: Tensor,
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
) -> Tensor:
    """The clipped surrogate of each token, `-min(ratio * A, clamp(ratio, 1 - epsilon, 1 + epsilon_high) * A)`.

    The loss of [PPO](https://arxiv.org/abs/1707.06347) and [GRPO](https://arxiv.org/abs/2402.03300); an
    `epsilon_high` of its own is [DAPO](https://arxiv.org/abs/2503.14476)'s.

    Args:
        logps (`Tensor` of shape `(N, C)`): Log-probabilities of the policy.
        old_logps (`Tensor` of shape `(N, C)`): Log-probabilities at sampling time.
        advantages (`Tensor` of shape `(N,)` or `(N, C)`): Advantage of each completion, or of each token.
        epsilon (`float`, *optional*, defaults to 0.2): Distance of the lower clip from 1.
        epsilon_high (`float`, *optional*): Distance of the upper clip from 1; `epsilon` by default.

    Returns:
        `Tensor` of shape `(N, C)`.
    """
    upper = 1 + resolve_epsilon_high("grpo", epsilon, epsilon_high)
    return _clipped_surrogate(logps - old_logps, _per_token(advantages, logps), 1 - epsilon, upper)


def cispo_token_loss(
    logps: Tensor,
    old_logps: Tensor,
    advantages: Tensor,
    epsilon_high: float | None = None,
) -> Tensor:
    """The CISPO loss of each token, `-(clamp(ratio, max=epsilon_high) * A * logp)` with a constant weight.

    Unlike a clipped surrogate it keeps the gradient of every token and bounds only its weight
    ([MiniMax-M1](https://arxiv.org/abs/2506.13585)).

    Args:
        logps (`Tensor` of shape `(N, C)`): Log-probabilities of the policy.
        old_logps (`Tensor` of shape `(N, C)`): Log-probabilities at sampling time.
        advantages (`Tensor` of shape `(N,)` or `(N, C)`): Advantage of each completion, or of each token.
        epsilon_high (`float`, *optional*): Largest weight; 5.0 by default.

    Returns:
        `Tensor` of shape `(N, C)`.
    """
    upper = resolve_epsilon_high("cispo", epsilon_high=epsilon_high)
    return _weighted_logps(logps - old_logps, logps, _per_token(advantages, logps), upper)


def policy_loss(
    logps: Tensor,
    old_logps: Tensor,
    ref_logps: Tensor | None,
    advantages: Tensor,
    mask: Tensor,
    *,
    loss_type: str = "cispo",
    beta: float = 0.1,
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    delta: float | None = None,
    importance_sampling_level: str = "token",
    use_bias_correction_kl: bool = False,
    off_policy_mask_threshold: float | None = None,
    policy_mask: Tensor | None = None,
    loss_aggregation: str | None = None,
    denominator: Tensor | float | None = None,
    max_completion_length: int | None = None,
    local_tokens: Tensor | float | None = None,
    token_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of GRPO or CISPO over a batch, with `beta * k3` to the reference.

    Args:
        logps (`Tensor` of shape `(N, C)`): Log-probabilities of the policy, with a graph.
        old_logps (`Tensor` of shape `(N, C)`): Log-probabilities at sampling time.
        ref_logps (`Tensor` of shape `(N, C)`, *optional*): Log-probabilities of the reference; may be `None` when
            `beta` is 0.
        advantages (`Tensor` of shape `(N,)` or `(N, C)`): Advantage of each completion, or of each token.
        mask (`Tensor` of shape `(N, C)`): Valid tokens.
        loss_type (`str`, *optional*, defaults to `"cispo"`): See [`resolve_loss_type`].
        beta (`float`, *optional*, defaults to 0.1): Weight of the KL term.
        epsilon (`float`, *optional*, defaults to 0.2): Distance of the lower clip from 1, for `"grpo"`.
        epsilon_high (`float`, *optional*): See [`resolve_epsilon_high`].
        delta (`float`, *optional*): Bound of the ratio where the advantage is negative, for `"grpo"`
            ([INTELLECT-2](https://arxiv.org/abs/2505.07291)).
        importance_sampling_level (`str`, *optional*, defaults to `"token"`): `"sequence"`: all tokens of a completion
            have the ratio `exp(mean of new - old)` ([GSPO](https://arxiv.org/abs/2507.18071)).
        use_bias_correction_kl (`bool`): Multiply k3 by the ratio, which makes its gradient that of the reverse KL
            ([DeepSeek-V3.2](https://arxiv.org/abs/2512.02556)).
        off_policy_mask_threshold (`float`, *optional*): See [`off_policy_mask`].
        policy_mask (`Tensor` of shape `(N, C)`, *optional*): Tokens that the policy's term sees, of those in `mask`;
            the KL term and the divisor see all.
        loss_aggregation, denominator, max_completion_length, local_tokens: See [`aggregate`].
        token_weights (`Tensor` of shape `(N, C)`, *optional*): Weight of each token's surrogate, from
            [`correction_weights`]; the KL term is not weighted.

    Returns:
        `(loss, metrics)`. Metrics: `ratio_mean`, `approx_kl`, `clip_low` and `clip_high` (share of tokens that the
        clip changes below and above), `clip_region` (their sum), `kl_ref` (with a reference), `num_tokens`.

    Raises:
        ValueError: If a shape does not fit the mask, or `beta` is not 0 and there is no reference.
    """
    objective, how = resolve_loss_type(loss_type, loss_aggregation)
    logps, old_logps, ref_logps, advantages = _cleaned(mask, logps, old_logps, ref_logps, advantages, "beta", beta)
    upper = resolve_epsilon_high(loss_type, epsilon, epsilon_high)
    log_ratio = _log_ratio(logps, old_logps, mask, importance_sampling_level)
    if objective == "cispo":
        per_token = _weighted_logps(log_ratio, logps, advantages, upper)
    else:
        per_token = _clipped_surrogate(log_ratio, advantages, 1 - epsilon, 1 + upper, delta)
    if off_policy_mask_threshold is not None:
        kept = off_policy_mask(logps, old_logps, advantages, mask, off_policy_mask_threshold)
        per_token = fill_masked(per_token, kept)
    if policy_mask is not None:
        per_token = fill_masked(per_token, policy_mask)
    per_token = _weighted(per_token, token_weights, mask)
    if beta:
        kl = k3(logps, ref_logps)
        per_token = per_token + beta * (kl * bounded_exp(log_ratio) if use_bias_correction_kl else kl)
    loss = aggregate(per_token, mask, how, denominator, max_completion_length, local_tokens)

    metrics = _ratio_metrics(logps, old_logps, ref_logps, mask)
    ratio = bounded_exp(log_ratio.detach())
    if objective == "cispo":
        low, high = torch.zeros_like(ratio), (ratio > upper).to(ratio.dtype)
    else:
        # The clip decides only where it makes the objective smaller.
        low = ((ratio < 1 - epsilon) & (advantages < 0)).to(ratio.dtype)
        high = ((ratio > 1 + upper) & (advantages > 0)).to(ratio.dtype)
    metrics["clip_low"], metrics["clip_high"] = masked_mean(low, mask), masked_mean(high, mask)
    metrics["clip_region"] = metrics["clip_low"] + metrics["clip_high"]
    return loss, metrics


def _log_ratio(logps: Tensor, old_logps: Tensor, mask: Tensor, level: str) -> Tensor:
    if level not in IMPORTANCE_SAMPLING_LEVELS:
        raise ValueError(
            f"`importance_sampling_level` must be one of {', '.join(IMPORTANCE_SAMPLING_LEVELS)}, got {level!r}."
        )
    return logps - old_logps if level == "token" else sequence_log_ratio(logps, old_logps, mask)


def _clipped_surrogate(
    log_ratio: Tensor, advantages: Tensor, lower: float, upper: float, delta: float | None = None
) -> Tensor:
    ratio = bounded_exp(log_ratio)
    clipped = ratio.clamp(lower, upper)
    if delta is not None:
        ratio = ratio.clamp(max=delta)
    return -torch.min(ratio * advantages, clipped * advantages)


def _weighted_logps(log_ratio: Tensor, logps: Tensor, advantages: Tensor, upper: float) -> Tensor:
    weight = bounded_exp(log_ratio.detach()).clamp(max=upper)
    return -(weight * advantages * logps)


def ppo_policy_loss(
    logps: Tensor,
    old_logps: Tensor,
    ref_logps: Tensor | None,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_epsilon: float = 0.2,
    kl_coef: float = 0.02,
    loss_aggregation: str = "token",
    denominator: Tensor | float | None = None,
    max_completion_length: int | None = None,
    token_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The policy loss of [PPO](https://arxiv.org/abs/1707.06347), `max(-A * ratio, -A * clamp(ratio))`, with
    `kl_coef * k3` to the reference.

    Args:
        logps (`Tensor` of shape `(N, C)`): Log-probabilities of the policy, with a graph.
        old_logps (`Tensor` of shape `(N, C)`): Log-probabilities at sampling time.
        ref_logps (`Tensor` of shape `(N, C)`, *optional*): Log-probabilities of the reference; may be `None` when
            `kl_coef` is 0.
        advantages (`Tensor` of shape `(N, C)` or `(N,)`): Advantage of each token, or of each completion.
        mask (`Tensor` of shape `(N, C)`): Valid tokens.
        clip_epsilon (`float`, *optional*, defaults to 0.2): Distance of both clips from 1.
        kl_coef (`float`, *optional*, defaults to 0.02): Weight of the KL term.
        loss_aggregation, denominator, max_completion_length: See [`aggregate`]; PPO's mean is over tokens.
        token_weights (`Tensor` of shape `(N, C)`, *optional*): Weight of each token's surrogate, from
            [`correction_weights`]; the KL term is not weighted.

    Returns:
        `(loss, metrics)`. Metrics: `policy_loss` (the aggregated surrogate without the KL term), `ratio_mean`,
        `approx_kl`, `clip_fraction`, `kl_ref` (with a reference), `num_tokens`.

    Raises:
        ValueError: If a shape does not fit the mask, or `kl_coef` is not 0 and there is no reference.
    """
    logps, old_logps, ref_logps, advantages = _cleaned(
        mask, logps, old_logps, ref_logps, advantages, "kl_coef", kl_coef
    )
    over = {"how": loss_aggregation, "denominator": denominator, "max_completion_length": max_completion_length}
    per_token = grpo_token_loss(logps, old_logps, advantages, clip_epsilon)
    surrogate = aggregate(_weighted(per_token, token_weights, mask), mask, **over)
    metrics = _ratio_metrics(logps, old_logps, ref_logps, mask)
    metrics["policy_loss"] = surrogate.detach()
    metrics["clip_fraction"] = clip_fraction(logps, old_logps, mask, clip_epsilon)
    if not kl_coef:
        return surrogate, metrics
    return surrogate + kl_coef * aggregate(k3(logps, ref_logps), mask, **over), metrics


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
        cliprange_value (`float`, *optional*, defaults to 0.2): How far a value may move before its gradient stops.
        loss_aggregation, denominator, max_completion_length: See [`aggregate`]; PPO's mean is over tokens.

    Returns:
        `(loss, metrics)`. Metrics: `value_clip_fraction` (share of tokens where the clamped value decides),
        `num_tokens`.

    Raises:
        ValueError: If a shape does not fit the mask.
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
    """Share of the variance of the returns that the values account for, `1 - Var(ret - v) / Var(ret)`.

    1 is a perfect critic, 0 one as good as a constant, below 0 one that is worse. Returns that do not vary give 1 when
    the values hit them up to a constant and 0 otherwise.

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


def _weighted(per_token: Tensor, token_weights: Tensor | None, mask: Tensor) -> Tensor:
    if token_weights is None:
        return per_token
    require_same_shape(mask, token_weights=token_weights)
    return per_token * fill_masked(token_weights.detach(), mask)


def _per_token(advantages: Tensor, logps: Tensor) -> Tensor:
    if advantages.dim() == 1:
        advantages = advantages[:, None].expand_as(logps)
    require_same_shape(logps, advantages=advantages)
    return advantages


def _cleaned(
    mask: Tensor,
    logps: Tensor,
    old_logps: Tensor,
    ref_logps: Tensor | None,
    advantages: Tensor,
    coefficient_name: str,
    coefficient: float,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Checks the shapes and replaces the masked slots; everything but `logps` comes back as a constant."""
    if coefficient and ref_logps is None:
        raise ValueError(
            f"`{coefficient_name}`={coefficient} weighs the KL to the reference, but `ref_logps` is None. "
            f"Pass them, or set `{coefficient_name}` to 0."
        )
    require_same_shape(mask, logps=logps, old_logps=old_logps, ref_logps=ref_logps)
    advantages = _per_token(advantages, logps)
    constants = [
        None if tensor is None else fill_masked(tensor.detach(), mask) for tensor in (old_logps, ref_logps, advantages)
    ]
    return fill_masked(logps, mask), *constants


@torch.no_grad()
def _ratio_metrics(logps: Tensor, old_logps: Tensor, ref_logps: Tensor | None, mask: Tensor) -> dict[str, Tensor]:
    metrics = {
        "ratio_mean": masked_mean(bounded_exp(logps - old_logps), mask),
        "approx_kl": approx_kl(logps, old_logps, mask),
        "num_tokens": mask.bool().sum(),
    }
    if ref_logps is not None:
        metrics["kl_ref"] = masked_mean(k3(logps, ref_logps), mask)
    return metrics
