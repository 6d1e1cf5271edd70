# SPDX-License-Identifier: Apache-2.0
"""Root mean square norms with a backward pass of their own.

Written out of single operations, as in transformers, the backward of a norm goes over its input a dozen times and
keeps three tensors of its size; on a CPU that takes as long as a matrix product. Here it goes over it five times and
keeps one. The results are those of transformers' module up to rounding.
"""

import torch
from torch import Tensor, nn

from .replacing import replace_forwards

# Those that compute `weight * (x / rms(x))` in float32 and round the quotient to the dtype of `x`.
NORMS = frozenset(["LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm", "Qwen3MoeRMSNorm"])
DTYPES = (torch.float32, torch.bfloat16)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, epsilon):
        wide = x.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = length.square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()
        normed = (wide * scale).to(x.dtype)
        ctx.save_for_backward(normed, weight, scale)
        return weight * normed

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        normed, weight, scale = ctx.saved_tensors
        wants_x, wants_weight, _ = ctx.needs_input_grad
        grad, wide, wide_weight = grad.float(), normed.float(), weight.float()
        products = grad * wide
        grad_x = grad_weight = None
        if wants_weight:
            grad_weight = products.flatten(0, -2).sum(dim=0).to(weight.dtype)
        if wants_x:
            # With y = x * scale: dL/dx = scale * (g * w - y * mean(g * w * y)).
            along = torch.mv(products.flatten(0, -2), wide_weight).div_(wide.shape[-1]).view(scale.shape)
            grad_x = torch.addcmul(grad * wide_weight, wide, along, value=-1).mul_(scale).to(normed.dtype)
        return grad_x, grad_weight, None


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """`weight * x / sqrt(mean(x^2) + epsilon)` over the last dimension, of float32 or bfloat16.

    Args:
        x (`Tensor` of shape `(..., width)`): Normed in float32; the quotient has its dtype.
        weight (`Tensor` of shape `(width,)`)
        epsilon (`float`): Added to the mean square.

    Returns:
        `Tensor` of shape `(..., width)`: In the wider dtype of both.
    """
    return _RMSNorm.apply(x, weight, epsilon)


def use_lean_norms(model: nn.Module) -> int:
    """Makes the norms of a model that [`rms_norm`] computes exactly compute by it.

    Returns:
        `int`: How many modules changed.
    """
    return replace_forwards(model, _is_known, _compute)


def _is_known(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__name__ in NORMS and kind.__module__.startswith("transformers.models.")


def _compute(module: nn.Module, x: Tensor) -> Tensor:
    if x.dtype not in DTYPES or x.dim() < 2 or x.numel() == 0:
        return type(module).forward(module, x)
    return rms_norm(x, module.weight, module.variance_epsilon)
