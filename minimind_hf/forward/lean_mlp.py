# SPDX-License-Identifier: Apache-2.0
"""Gated feed-forwards on a CPU that keep half as much for the backward pass; weights, names and classes do not change.

Of `down(silu(gate(x)) * up(x))`, autograd keeps four tensors of the inner width: both products, the activation and the
gated product, which together are most of what a layer keeps. Here the last two are computed again, some rows at a
time, so that they come from the cache. The results are the same.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .lean import is_replaced, product, replace_forwards

# Modules that compute `down_proj(act_fn(gate_proj(x)) * up_proj(x))`.
MLPS = frozenset(["LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP", "Qwen3MoeMLP"])
ACTIVATIONS = frozenset(["SiLU", "SiLUActivation"])
ROWS_PER_TILE = 64  # with 1664 numbers each, 0.4 MiB per tensor


class _GatedDown(torch.autograd.Function):
    """gate and up `(R, inner)`, weight `(H, inner)` -> `(silu(gate) * up) @ weight.T`, `(R, H)`."""

    @staticmethod
    def forward(ctx, gate, up, weight):
        ctx.save_for_backward(gate, up, weight)
        gated = torch.empty_like(gate)
        for gate_tile, up_tile, tile in _tiles(gate, up, gated):
            torch.mul(F.silu(gate_tile), up_tile, out=tile)
        return product(gated, weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        gate, up, weight = ctx.saved_tensors
        grad = grad.contiguous()
        grad_up = product(grad, weight.t())  # of the gated product at first
        gated, grad_gate = torch.empty_like(gate), torch.empty_like(gate)
        for gate_tile, up_tile, tile, slopes, grad_gate_tile in _tiles(gate, up, gated, grad_up, grad_gate):
            activated = F.silu(gate_tile)
            torch.mul(activated, up_tile, out=tile)
            torch.ops.aten.silu_backward.grad_input(slopes * up_tile, gate_tile, grad_input=grad_gate_tile)
            slopes.mul_(activated)
        grad_weight = product(grad.t(), gated.t()) if ctx.needs_input_grad[2] else None
        return grad_gate, grad_up, grad_weight


def _tiles(*tensors: Tensor):
    return zip(*(tensor.split(ROWS_PER_TILE) for tensor in tensors), strict=True)


def use_lean_mlps(model: nn.Module) -> int:
    """Makes the gated feed-forwards of a model keep less.

    Returns:
        `int`: Number of modules changed.
    """
    return replace_forwards(model, _is_known, _compute)


def _is_known(module: nn.Module) -> bool:
    kind = type(module)
    is_known = kind.__name__ in MLPS and kind.__module__.startswith("transformers.models.")
    return is_known and type(module.act_fn).__name__ in ACTIVATIONS


def _compute(module: Any, x: Tensor) -> Tensor:
    if not (torch.is_grad_enabled() and _fits(x) and _is_plain(module.down_proj)):
        return type(module).forward(module, x)
    gate, up = (projection(x).flatten(0, -2) for projection in (module.gate_proj, module.up_proj))
    return _GatedDown.apply(gate, up, module.down_proj.weight).unflatten(0, x.shape[:-1])


def _fits(x: Tensor) -> bool:
    on_cpu = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
    return on_cpu and x.dim() >= 2 and x.numel() > 0 and not torch.is_autocast_enabled("cpu")


def _is_plain(linear: nn.Module) -> bool:
    """Whether nothing else happens in a linear layer: no adapter, no bias, no hook of anybody."""
    hooks = (linear._forward_hooks, linear._forward_pre_hooks, linear._backward_hooks, linear._backward_pre_hooks)
    own_forward = "forward" not in vars(linear) or is_replaced(linear)
    return type(linear) is nn.Linear and linear.bias is None and own_forward and not any(hooks)
