# SPDX-License-Identifier: Apache-2.0
"""From per-token losses to one loss, whatever the shape of the micro-batches.

The divisor belongs to the whole optimizer step. The trainer sums `loss_denominator` over all micro-batches on all
ranks and passes the sum to each call of `aggregate`. The losses of the micro-batches then *add up* to the loss of the
whole batch: 1 x 8, 2 x 4 and 8 x 1 give the same gradient, except under `local_token`, which averages within
micro-batches. (If gradients are averaged over ranks, as in DDP, the loss must also be multiplied by the number of
ranks.)
"""

import torch
from torch import Tensor

from .masking import fill_masked

LOSS_AGGREGATIONS = ("sequence", "token", "constant", "local_token", "sequence_sum")


def loss_denominator(mask: Tensor, how: str, max_completion_length: int | None = None) -> Tensor:
    """The contribution of a batch to the divisor of the step. A fully masked row adds nothing.

    Args:
        mask (`Tensor` of shape `(N, C)`): Valid tokens.
        how (`str`): `"sequence"` and `"sequence_sum"`: the number of rows with a valid token; `"token"`: the number
            of valid tokens; `"constant"`: the number of rows with a valid token times `max_completion_length`;
            `"local_token"`: 1 for a micro-batch with a valid token.
        max_completion_length (`int`, *optional*): Needed for `"constant"`.

    Returns:
        `Tensor`, scalar, int64.

    Raises:
        ValueError: If `how` is unknown, or `max_completion_length` is missing.
    """
    _require_known(how)
    mask = mask.bool()
    if how == "token":
        return mask.sum()
    if how == "local_token":
        return mask.any().long()
    sequences = mask.any(dim=1).sum()
    if how in ("sequence", "sequence_sum"):
        return sequences
    if max_completion_length is None:
        raise ValueError('`how="constant"` divides by `max_completion_length`, which is None. Pass it.')
    return sequences * max_completion_length


def aggregate(
    per_token: Tensor,
    mask: Tensor,
    how: str = "sequence",
    denominator: Tensor | float | None = None,
    max_completion_length: int | None = None,
    local_tokens: Tensor | float | None = None,
) -> Tensor:
    """Adds up the per-token losses of a batch and divides them by the denominator of the step.

    Args:
        per_token (`Tensor` of shape `(N, C)`): Loss per token.
        mask (`Tensor` of shape `(N, C)`): Valid tokens.
        how (`str`, *optional*, defaults to `"sequence"`): `"sequence"`: mean over the tokens of each sequence, then
            over sequences ([GRPO](https://arxiv.org/abs/2402.03300)); `"token"`: mean over all tokens
            ([DAPO](https://arxiv.org/abs/2503.14476)); `"constant"`: sum over tokens divided by a constant length
            ([Dr. GRPO](https://arxiv.org/abs/2503.20783)); `"local_token"`: mean over the tokens of each micro-batch,
            then over micro-batches (trl's `bnpo`); `"sequence_sum"`: sum over the tokens of each sequence, then mean
            over sequences ([LUSPO](https://arxiv.org/abs/2602.05261)).
        denominator (`Tensor` or `float`, *optional*): Sum of [`loss_denominator`] over all micro-batches and ranks of
            the step. Default: that of this batch alone.
        max_completion_length (`int`, *optional*): Needed for `"constant"` when no denominator is given.
        local_tokens (`Tensor` or `float`, *optional*): For `"local_token"`: valid tokens of the micro-batch that this
            batch is a part of. Default: those of this batch alone.

    Returns:
        `Tensor`, scalar: 0, with a graph and zero gradients, if no token is valid.

    Raises:
        ValueError: If `how` is unknown, or `max_completion_length` is missing.
    """
    _require_known(how)
    if denominator is None:
        denominator = loss_denominator(mask, how, max_completion_length)
    total = fill_masked(per_token, mask).sum(dim=1)
    if how == "sequence":
        total = total / mask.bool().sum(dim=1).clamp(min=1)
    elif how == "local_token":
        local_tokens = mask.bool().sum() if local_tokens is None else local_tokens
        total = total / torch.as_tensor(local_tokens, dtype=total.dtype, device=total.device).clamp(min=1)
    divisor = torch.as_tensor(denominator, dtype=total.dtype, device=total.device)
    return total.sum() / torch.where(divisor == 0, 1.0, divisor)


def _require_known(how: str) -> None:
    if how not in LOSS_AGGREGATIONS:
        raise ValueError(f"The loss aggregation must be one of {', '.join(LOSS_AGGREGATIONS)}, got {how!r}.")
