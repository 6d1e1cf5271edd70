# SPDX-License-Identifier: Apache-2.0
"""A copy of a model in another dtype, which follows the model's weights in place.

Autocast would cast every weight in every step, which costs more memory traffic than the step itself. Only weights are
cast: buffers keep their precision, which RoPE's frequencies need.
"""

import copy

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from ...forward.introspection import unwrap


class CastCopy:
    """The copy.

    Args:
        model (`nn.Module`): A causal LM with whole weights.
        dtype (`torch.dtype`): Of the copy's weights.

    Attributes:
        module (`nn.Module`): The copy, in evaluation mode; its weights keep their addresses.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype):
        self.dtype, self.adapters = dtype, adapter_state(model)
        cast = {
            id(each): nn.Parameter(_cast(each.detach(), dtype), requires_grad=False) for each in model.parameters()
        }
        self.module = copy.deepcopy(model, cast).eval()
        # accelerate's mixed precision wraps the forward in autocast.
        for module in (self.module, unwrap(self.module)):
            if "_original_forward" in vars(module):
                module.forward = vars(module)["_original_forward"]

    def fits(self, model: nn.Module, dtype: torch.dtype) -> bool:
        """Whether it is a copy of a model with these modules and adapters."""
        shapes = zip(self.module.parameters(), model.parameters(), strict=False)
        return (
            (dtype, adapter_state(model)) == (self.dtype, self.adapters)
            and len(list(self.module.parameters())) == len(list(model.parameters()))
            and all(mine.shape == other.shape for mine, other in shapes)
        )

    @torch.no_grad()
    def follow(self, model: nn.Module) -> None:
        """Takes the model's weights and buffers, in place."""
        for mine, others in ((self.module.parameters(), model.parameters()), (self.module.buffers(), model.buffers())):
            for own, other in zip(mine, others, strict=True):
                own.copy_(other) if own.shape == other.shape else own.set_(other.clone())


def _cast(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return weight.to(dtype, copy=True) if weight.is_floating_point() else weight.clone()


def adapter_state(model: nn.Module) -> tuple:
    """Which adapters compute: a change of it changes what a forward pass does, though no weight moves."""
    layers = (module for module in model.modules() if isinstance(module, BaseTunerLayer))
    return tuple((tuple(layer.active_adapters), layer.disable_adapters, layer.merged) for layer in layers)
