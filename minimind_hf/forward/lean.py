# SPDX-License-Identifier: Apache-2.0
"""Faster linear layers and norms for a model on a CPU, with less memory; weights, names and classes do not change.

Linear layers: torch sends float32 products to MKL, which is far below peak speed on CPUs not made by Intel: 2.3 times
slower than oneDNN on an AMD EPYC with AVX-512, forward and backward, at the sizes of a small language model. oneDNN
reads transposed weights in place; a transposed input is copied, in tiles.

Norms: transformers writes a root mean square norm as separate operations. Its backward pass then reads the input a
dozen times and keeps three tensors of the same size, which on a CPU takes as long as a matrix product. This version
reads it five times and keeps one tensor.

The results equal those of the modules' own forwards up to rounding.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDE, TILE = 1024, 64  # rows of a transposed matrix from which it is copied in tiles, and their columns


def replace_forwards(
    model: nn.Module, is_meant: Callable[[Any], bool], compute: Callable[[Any, Tensor], Tensor]
) -> int:
    """Replaces the forward of selected modules by a function of the module and its input.

    Args:
        model (`nn.Module`): The model whose modules are searched.
        is_meant (`Callable`): Whether to replace the forward of a module.
        compute (`Callable`): The new forward. It must be a module-level function, so that the model can be pickled.

    Returns:
        `int`: Number of modules changed.
    """
    meant = [module for module in model.modules() if is_meant(module)]
    for module in meant:
        module.forward = _Forward(module, compute)
    return len(meant)


class _Forward:
    """The forward of one module. It holds no weights, so copies and pickles of the module stay correct."""

    def __init__(self, module: nn.Module, compute: Callable[[Any, Tensor], Tensor]):
        self.module, self.compute = module, compute

    def __call__(self, x: Tensor) -> Tensor:
        return self.compute(self.module, x)


@contextmanager
def plain_forwards(model: nn.Module) -> Iterator[None]:
    """Within it, modules compute by their own forwards."""
    replaced = restore_forwards(model)
    try:
        yield
    finally:
        for module, forward in replaced:
            module.forward = forward


def restore_forwards(model: nn.Module) -> list[tuple[nn.Module, Callable[[Tensor], Tensor]]]:
    """Undoes [`replace_forwards`], and returns the modules with the forwards that they had."""
    replaced = [(module, vars(module)["forward"]) for module in model.modules() if is_replaced(module)]
    for module, _ in replaced:
        del module.forward
    return replaced


def is_replaced(module: nn.Module) -> bool:
    """Whether [`replace_forwards`] has given a module its forward."""
    return isinstance(vars(module).get("forward"), _Forward)


# Linear layers


def is_available() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias` of two matrices."""
    return torch.ops.mkldnn._linear_pointwise(_row_by_row(x), weight, bias, "none", [], "")


def _row_by_row(matrix: Tensor) -> Tensor:
    """A contiguous matrix. A transposed one is copied in tiles, three times as fast as torch's copy where it is wide:
    that one takes single numbers from far apart."""
    if matrix.is_contiguous() or len(matrix) < WIDE:
        return matrix.contiguous()
    copied = torch.empty(matrix.shape, dtype=matrix.dtype)
    for to, source in zip(copied.split(TILE, dim=1), matrix.split(TILE, dim=1), strict=True):
        to.copy_(source)
    return copied


def product(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight.T` of two matrices of any dtype, without a gradient. oneDNN computes float32 on a CPU."""
    if x.device.type == "cpu" and x.dtype == torch.float32 and x.numel() and weight.numel() and is_available():
        return _product(*(each if _is_dense(each) else each.contiguous() for each in (x, weight)))
    return x @ weight.t()


def _is_dense(matrix: Tensor) -> bool:
    """Whether a matrix or its transpose is contiguous; oneDNN reads others a thousand times slower."""
    return matrix.is_contiguous() or matrix.t().is_contiguous()


class _Linear(torch.autograd.Function):
    """Returns a matrix, whatever the shape of `x`: autograd refuses to change a view made in here in place, as some
    models and adapters do."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return _product(x.flatten(0, -2), weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        rows = grad.contiguous()  # an expanded gradient (of a sum, say) repeats memory
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        grad_x = _product(rows, weight.t()).view_as(x) if wants_x else None
        grad_weight = _product(rows.t(), x.flatten(0, -2).t()) if wants_weight else None
        grad_bias = rows.sum(dim=0) if ctx.has_bias and wants_bias else None
        return grad_x, grad_weight, grad_bias


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Equals `F.linear`; oneDNN computes it if both are float32 on a CPU and autocast is off."""
    on_cpu = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    if not on_cpu or x.dim() < 2 or x.numel() == 0 or torch.is_autocast_enabled("cpu"):
        return F.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias).unflatten(0, x.shape[:-1])


def use_onednn(model: nn.Module) -> int:
    """Makes the `nn.Linear` modules of a model use [`linear`].

    Subclasses (quantised layers, for example) have their own forward and are left alone.

    Returns:
        `int`: Number of modules changed; 0 if oneDNN is missing.
    """
    return replace_forwards(model, _is_plain_linear, _compute_linear) if is_available() else 0


def _is_plain_linear(module: nn.Module) -> bool:
    return type(module) is nn.Linear


def _compute_linear(module: nn.Linear, x: Tensor) -> Tensor:
    return linear(x, module.weight, module.bias)


# Norms

# Norms that compute `weight * (x / rms(x))` in float32 and round the quotient to the dtype of `x`.
NORMS = frozenset(["LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm", "Qwen3MoeRMSNorm"])
NORM_DTYPES = (torch.float32, torch.bfloat16)


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
        x (`Tensor` of shape `(..., width)`): Normalized in float32; the quotient is rounded to this dtype.
        weight (`Tensor` of shape `(width,)`)
        epsilon (`float`): Added to the mean square.

    Returns:
        `Tensor` of shape `(..., width)`, in the wider dtype of `x` and `weight`.
    """
    return _RMSNorm.apply(x, weight, epsilon)


def use_lean_norms(model: nn.Module) -> int:
    """Makes the norms of a model use [`rms_norm`], if it computes exactly what they do.

    Returns:
        `int`: Number of modules changed.
    """
    return replace_forwards(model, _is_known_norm, _compute_norm)


def _is_known_norm(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__name__ in NORMS and kind.__module__.startswith("transformers.models.")


def _compute_norm(module: nn.Module, x: Tensor) -> Tensor:
    if x.dtype not in NORM_DTYPES or x.dim() < 2 or x.numel() == 0:
        return type(module).forward(module, x)
    return rms_norm(x, module.weight, module.variance_epsilon)
