# SPDX-License-Identifier: Apache-2.0
"""The policy losses of GRPO, CISPO and their relatives: tensors in, `(loss, metrics)` out.

`policy_loss` does what all of them share: masks, importance ratios, the KL term, the mean over the step. They
differ in the loss of each token, a function in the table of `objectives`.

Log-probabilities have shape `(N, C)`, belong to the sampling distribution and should be float32 or wider. Every input
except `logps` is treated as a constant. Slots outside the mask are replaced before any arithmetic. Metrics are
detached scalars: means over the valid tokens of the batch, and the number of these tokens as `num_tokens`. Weight by
it to combine micro-batches or ranks.
"""

from dataclasses import replace

import torch
from torch import Tensor

from .aggregation import aggregate
from .loss_inputs import LossInputs
from .masking import fill_masked, masked_mean, require_same_shape
from .objectives import LossSettings, resolve_loss_type
from .ratios import approx_kl, bounded_exp, k3, sequence_log_ratio, sequence_token_log_ratio
from .token_choice import off_policy_mask

IMPORTANCE_SAMPLING_LEVELS = ("token", "sequence", "sequence_token")


def policy_loss(inputs: LossInputs, settings: LossSettings | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a batch under any of the objectives, plus `beta * k3` against the reference.

    Args:
        inputs ([`LossInputs`]): N completions of at most C tokens.
        settings ([`LossSettings`], *optional*): The loss and its coefficients. Default: CISPO with its defaults.

    Returns:
        `(loss, metrics)`. Metrics: `ratio_mean`, `approx_kl`, `kl_ref` (with a reference), `num_tokens` and, if the
        objective clips, `clip_low` and `clip_high` (share of tokens that the clip changes below and above) and
        `clip_region` (their sum).

    Raises:
        ValueError: If a shape does not match the mask, `beta` is not 0 and there is no reference, or the loss type is
            unknown.
    """
    settings = settings or LossSettings()
    objective, how = resolve_loss_type(settings.loss_type, settings.loss_aggregation)
    inputs = clean_inputs(inputs, "beta", settings.beta)
    inputs = replace(inputs, log_ratio=_log_ratio(inputs, settings.importance_sampling_level))
    per_token = objective.token_loss(inputs, settings)
    require_same_shape(inputs.mask, token_loss=per_token)
    if settings.off_policy_mask_threshold is not None:
        kept = off_policy_mask(
            inputs.logps, inputs.old_logps, inputs.advantages, inputs.mask, settings.off_policy_mask_threshold
        )
        per_token = fill_masked(per_token, kept)
    if inputs.policy_mask is not None:
        per_token = fill_masked(per_token, inputs.policy_mask)
    if not objective.takes_token_weights:  # otherwise they are already in its loss
        per_token = weigh_tokens(per_token, inputs)
    if settings.beta:
        kl = k3(inputs.logps, inputs.ref_logps)
        kl = kl * bounded_exp(inputs.log_ratio) if settings.use_bias_correction_kl else kl
        per_token = per_token + settings.beta * kl
    loss = aggregate(
        per_token, inputs.mask, how, inputs.denominator, settings.max_completion_length, inputs.local_tokens
    )
    metrics = ratio_metrics(inputs)
    if objective.clipped is not None:
        low, high = objective.clipped(inputs, settings)
        metrics["clip_low"] = masked_mean(low.to(per_token.dtype), inputs.mask)
        metrics["clip_high"] = masked_mean(high.to(per_token.dtype), inputs.mask)
        metrics["clip_region"] = metrics["clip_low"] + metrics["clip_high"]
    return loss, metrics


def clean_inputs(inputs: LossInputs, coefficient_name: str, coefficient: float) -> LossInputs:
    """Checks the shapes, replaces the masked slots and gives every token its advantage.

    Everything except `logps` is returned as a constant.

    Raises:
        ValueError: If a shape does not match the mask, or the KL term has a weight and there is no reference.
    """
    mask, ref_logps = inputs.mask, inputs.ref_logps
    if coefficient and ref_logps is None:
        raise ValueError(
            f"`{coefficient_name}`={coefficient} weighs the KL to the reference, but `ref_logps` is None. "
            f"Pass them, or set `{coefficient_name}` to 0."
        )
    require_same_shape(mask, logps=inputs.logps, old_logps=inputs.old_logps, ref_logps=ref_logps)
    advantages = inputs.advantages
    if advantages.dim() == 1:
        advantages = advantages[:, None].expand_as(mask)
    require_same_shape(mask, advantages=advantages)
    return replace(
        inputs,
        logps=fill_masked(inputs.logps, mask),
        old_logps=fill_masked(inputs.old_logps.detach(), mask),
        ref_logps=None if ref_logps is None else fill_masked(ref_logps.detach(), mask),
        advantages=fill_masked(advantages.detach(), mask),
    )


def weigh_tokens(per_token: Tensor, inputs: LossInputs) -> Tensor:
    """Multiplies the loss of each token by its weight, if there are weights."""
    if inputs.token_weights is None:
        return per_token
    require_same_shape(inputs.mask, token_weights=inputs.token_weights)
    return per_token * fill_masked(inputs.token_weights.detach(), inputs.mask)


@torch.no_grad()
def ratio_metrics(inputs: LossInputs) -> dict[str, Tensor]:
    """How far the policy is from the one that sampled, and from the reference."""
    metrics = {
        "ratio_mean": masked_mean(bounded_exp(inputs.logps - inputs.old_logps), inputs.mask),
        "approx_kl": approx_kl(inputs.logps, inputs.old_logps, inputs.mask),
        "num_tokens": inputs.mask.bool().sum(),
    }
    if inputs.ref_logps is not None:
        metrics["kl_ref"] = masked_mean(k3(inputs.logps, inputs.ref_logps), inputs.mask)
    return metrics


def _log_ratio(inputs: LossInputs, level: str) -> Tensor:
    if level not in IMPORTANCE_SAMPLING_LEVELS:
        raise ValueError(
            f"`importance_sampling_level` must be one of {', '.join(IMPORTANCE_SAMPLING_LEVELS)}, got {level!r}."
        )
    if level == "token":
        return inputs.logps - inputs.old_logps
    of_sequence = sequence_log_ratio if level == "sequence" else sequence_token_log_ratio
    return of_sequence(inputs.logps, inputs.old_logps, inputs.mask)
