# SPDX-License-Identifier: Apache-2.0
"""Provides the policy to a rollout engine: an ordinary module with unsharded weights, gathered once per rollout.

With one process, DDP, ZeRO-1 and ZeRO-2, every process has such a module already. Under ZeRO-3, the policy's weights
are gathered in place, and its hooks are removed meanwhile. A process cannot call FSDP2 modules without the others, so
there an unwrapped twin of the policy borrows the gathered weights. The twin holds no weights between rollouts.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import nn
from trl.models.utils import add_hooks, remove_hooks

from .sharding import is_zero3, reshard, whole_tensor

# Added to parameter names by activation checkpointing and compilation
_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")


class RolloutWeights:
    """Gathers the policy for rollouts; create it before the policy is wrapped for training.

    Args:
        policy (`PreTrainedModel` or `PeftModel`): The policy, not yet wrapped.
        accelerator: The trainer's.
    """

    def __init__(self, policy: nn.Module, accelerator: Accelerator):
        self._is_zero3 = is_zero3(accelerator)
        self._twin = _weightless(policy) if accelerator.distributed_type == DistributedType.FSDP else None

    @contextmanager
    def gathered(self, wrapped: nn.Module, policy: nn.Module) -> Iterator[nn.Module]:
        """Yields the policy with unsharded weights; every process enters it.

        Args:
            wrapped (`nn.Module`): The trained model, as wrapped by accelerate.
            policy (`nn.Module`): The policy inside it.
        """
        if self._twin is not None:
            reshard(wrapped)
            with _lent(self._twin, policy):
                yield self._twin
        elif self._is_zero3:
            with _gathered_in_place(wrapped, policy):
                yield policy
        else:
            yield policy


def _weightless(policy: nn.Module) -> nn.Module:
    """Returns a copy with empty parameters; tied parameters stay tied."""
    empty = {
        id(parameter): nn.Parameter(parameter.data.new_empty(0), requires_grad=False)
        for parameter in policy.parameters()
    }
    return copy.deepcopy(policy, empty).eval()


@contextmanager
def _lent(twin: nn.Module, policy: nn.Module) -> Iterator[None]:
    sharded = {_plain_name(name): parameter for name, parameter in policy.named_parameters()}
    borrowers = dict(twin.named_parameters())
    for name, parameter in borrowers.items():
        parameter.data = whole_tensor(sharded[name].detach())
    for buffer in twin.buffers():
        buffer.data = buffer.data.to(next(iter(borrowers.values())).device)
    try:
        yield
    finally:
        for parameter in borrowers.values():
            parameter.data = parameter.data.new_empty(0)


def _plain_name(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


@contextmanager
def _gathered_in_place(deepspeed_engine: nn.Module, policy: nn.Module) -> Iterator[None]:
    import deepspeed

    # An evaluation before training gets a model that DeepSpeed has not wrapped yet.
    hooked = isinstance(deepspeed_engine, deepspeed.DeepSpeedEngine)
    with deepspeed.zero.GatheredParameters(list(policy.parameters())), torch.no_grad():
        if not hooked:
            yield
            return
        remove_hooks(deepspeed_engine)
        try:
            with _without_hook_of_steps(deepspeed_engine):
                yield
        finally:
            add_hooks(deepspeed_engine)


@contextmanager
def _without_hook_of_steps(deepspeed_engine: nn.Module) -> Iterator[None]:
    """Removes a hook that trl leaves in place: in the next forward pass it compares the processes, and would wait for
    those that make fewer passes or fail."""
    offload = getattr(deepspeed_engine.optimizer, "parameter_offload", deepspeed_engine.optimizer)
    hooks, number = offload.module._forward_pre_hooks, offload.fwd_pre_hook.id
    hook = hooks.pop(number)
    try:
        yield
    finally:
        hooks[number] = hook
