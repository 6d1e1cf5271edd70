# SPDX-License-Identifier: Apache-2.0
"""Which tokens count, and reductions over those that do.

A mask is True (or 1) at the tokens that count. Every reduction here *replaces* the other slots before it computes
anything. So NaN or infinity in such a slot reaches neither the value nor the gradient; multiplying by the mask would
not guarantee that (`NaN * 0`). A reduction over no tokens is 0 and still carries a graph.

A turn is a run of tokens that the policy sampled, that is, a run of ones in the loss mask. What stands between two
turns (the answers of tools or of an environment) has mask 0.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def completion_mask(completion_ids: Tensor, eos_token_ids: int | Sequence[int] | Tensor) -> Tensor:
    """Marks the tokens of each completion up to and including its first EOS.

    The padding id is ignored: many tokenizers pad with EOS, and a model may sample the padding id. A row without EOS
    (a truncated completion) counts in full. If such rows can be shorter than the tensor is wide, combine the mask with
    [`length_mask`].

    Args:
        completion_ids (`Tensor` of shape `(N, C)`): Completion token ids.
        eos_token_ids (`int`, sequence of `int` or one-dimensional `Tensor`): Every id that ends a completion.

    Returns:
        `Tensor` of shape `(N, C)`, bool.
    """
    eos = torch.as_tensor(eos_token_ids, device=completion_ids.device, dtype=completion_ids.dtype).reshape(-1)
    is_eos = torch.isin(completion_ids, eos).long()
    eos_before = is_eos.cumsum(dim=1) - is_eos
    return eos_before == 0


def length_mask(lengths: Tensor, width: int) -> Tensor:
    """Marks the first `lengths[i]` slots of row i.

    Args:
        lengths (`Tensor` of shape `(N,)`): Number of tokens of each row.
        width (`int`): Number of columns of the mask.

    Returns:
        `Tensor` of shape `(N, width)`, bool.
    """
    return torch.arange(width, device=lengths.device) < lengths[:, None]


def require_same_shape(mask: Tensor, **tensors: Tensor | None) -> None:
    """Refuses tensors that match the mask only by broadcasting, which would silently count tokens twice.

    Args:
        mask (`Tensor`): The mask with the expected shape.
        tensors (`Tensor` or `None`): Tensors by name; `None` is skipped.

    Raises:
        ValueError: If a tensor and the mask have different shapes.
    """
    for name, tensor in tensors.items():
        if tensor is not None and tensor.shape != mask.shape:
            raise ValueError(
                f"`{name}` has shape {tuple(tensor.shape)}, but the mask has shape {tuple(mask.shape)}. "
                "Pass one value per slot of the mask."
            )


def fill_masked(x: Tensor, mask: Tensor, value: float = 0.0) -> Tensor:
    """Replaces the values outside the mask; their gradient is exactly 0, whatever they were.

    Args:
        x (`Tensor`): Values.
        mask (`Tensor` of the shape of `x`): Slots to keep.
        value (`float`, *optional*, defaults to 0.0): Value of the other slots.

    Returns:
        `Tensor` of the shape and dtype of `x`.
    """
    require_same_shape(mask, x=x)
    return x.masked_fill(~mask.bool(), value)


def turn_numbers(mask: Tensor) -> Tensor:
    """The turn, from 0, that each token belongs to; tokens outside the mask have the number of the turn before them.

    Args:
        mask (`Tensor` of shape `(N, C)`): 1 for the tokens of the policy.

    Returns:
        `Tensor` of shape `(N, C)`, long, at least 0.
    """
    mask = mask.bool()
    before = torch.nn.functional.pad(mask, (1, 0))[:, :-1]
    return ((mask & ~before).cumsum(dim=1) - 1).clamp(min=0)


def spread_over_turns(values: Tensor, mask: Tensor) -> Tensor:
    """Gives every token the value of its turn.

    Args:
        values (`Tensor` of shape `(N, T)`): One value per turn. Further columns are ignored.
        mask (`Tensor` of shape `(N, C)`): 1 for the tokens of the policy.

    Returns:
        `Tensor` of shape `(N, C)`, with the dtype of `values`, 0 outside the mask.

    Raises:
        ValueError: If the numbers of rows differ.
    """
    if values.dim() != 2 or values.shape[:1] != mask.shape[:1]:
        raise ValueError(
            f"`values` has shape {tuple(values.shape)}, but the mask has shape {tuple(mask.shape)}. Pass one row of "
            "turns per row of the mask."
        )
    if values.shape[1] == 0:  # no episode has a turn
        return values.new_zeros(mask.shape)
    numbers = turn_numbers(mask).clamp(max=values.shape[1] - 1)
    return fill_masked(values.gather(1, numbers), mask)


def masked_sum(x: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Sum over the slots of the mask, over everything or along `dim`."""
    return fill_masked(x, mask).sum(dim=dim)


def masked_mean(x: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean over the slots of the mask, over everything or along `dim`; 0 if there are none."""
    return masked_sum(x, mask, dim) / mask.bool().sum(dim=dim).clamp(min=1)


def masked_mean_var(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and population variance over all slots of the mask.

    Args:
        x (`Tensor`): Values.
        mask (`Tensor` of the shape of `x`): Slots that count.

    Returns:
        `(mean, variance)`, two scalars with the dtype of `x`; both are 0 if the mask is empty.
    """
    x = fill_masked(x, mask)
    mean = masked_mean(x, mask)
    # A second pass removes the rounding error of the mean: equal values then have exactly that mean and variance 0.
    mean = mean + masked_mean(x - mean, mask)
    return mean, masked_mean((x - mean) ** 2, mask)
