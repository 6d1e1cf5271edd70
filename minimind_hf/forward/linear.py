# SPDX-License-Identifier: Apache-2.0
"""float32 matrix products of `nn.Linear` on a CPU, by oneDNN instead of MKL.

torch sends float32 products to MKL, which on CPUs of other makers runs far below their peak: 2.3 times slower than
oneDNN on an AMD EPYC with AVX-512, forward and backward, at the sizes of a small language model. oneDNN reads
transposed operands as they lie, so that both products of the backward pass need no copy either. The results are those
of `F.linear` up to the order of additions.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .replacing import replace_forwards


def is_available() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias` of two matrices."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def product(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight.T` of two matrices of any dtype, without a gradient; float32 on a CPU by oneDNN."""
    if x.device.type == "cpu" and x.dtype == torch.float32 and x.numel() and weight.numel() and is_available():
        return _product(*(each if _is_dense(each) else each.contiguous() for each in (x, weight)))
    return x @ weight.t()


def _is_dense(matrix: Tensor) -> bool:
    """Whether a matrix or its transpose is contiguous; oneDNN reads others a thousand times slower."""
    return matrix.is_contiguous() or matrix.t().is_contiguous()


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return _product(x.flatten(0, -2), weight, bias).unflatten(0, x.shape[:-1])

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        rows = grad.contiguous().flatten(0, -2)  # an expanded gradient (of a sum, say) repeats memory
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        grad_x = _product(rows, weight.t()).view_as(x) if wants_x else None
        grad_weight = _product(rows.t(), x.flatten(0, -2).t()) if wants_weight else None
        grad_bias = rows.sum(dim=0) if ctx.has_bias and wants_bias else None
        return grad_x, grad_weight, grad_bias


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As `F.linear`; by oneDNN where both are float32 on a CPU and autocast is off."""
    on_cpu = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    if not on_cpu or x.dim() < 2 or x.numel() == 0 or torch.is_autocast_enabled("cpu"):
        return F.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias)


def use_onednn(model: nn.Module) -> int:
    """Makes the `nn.Linear` modules of a model compute by [`linear`].

    Only plain ones: a subclass (quantised layers, say) has a forward of its own.

    Returns:
        `int`: How many modules changed; 0 where oneDNN is missing.
    """
    return replace_forwards(model, _is_plain, _compute) if is_available() else 0


def _is_plain(module: nn.Module) -> bool:
    return type(module) is nn.Linear


def _compute(module: nn.Linear, x: Tensor) -> Tensor:
    return linear(x, module.weight, module.bias)
