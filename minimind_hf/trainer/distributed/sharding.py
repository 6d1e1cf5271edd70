# SPDX-License-Identifier: Apache-2.0
"""Weights that several processes hold in parts: which modes the trainers run in, and how to see weights whole.

Under ZeRO-3 weights are in parts from the moment they are loaded, under FSDP2 from the moment that the trainer wraps
the model. Copies (reference, critic) are made before the wrapping, from whole weights.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import TrainingArguments
from transformers.integrations import is_deepspeed_zero3_enabled, unset_hf_deepspeed_config
from transformers.integrations.deepspeed import set_hf_deepspeed_config

SUPPORTED = (
    DistributedType.NO,
    DistributedType.MULTI_CPU,
    DistributedType.MULTI_GPU,
    DistributedType.DEEPSPEED,
    DistributedType.FSDP,
)


def check_mode(accelerator: Accelerator) -> None:
    """Refuses the modes that the trainers are not made for.

    Raises:
        ValueError: Naming the mode and what to use instead.
    """
    kind = accelerator.distributed_type
    if kind not in SUPPORTED:
        raise ValueError(
            f"The trainers run in one process, under DDP, DeepSpeed ZeRO and FSDP2, not under {kind.value}. Choose "
            "one of the files in accelerate_configs/."
        )
    if kind == DistributedType.DEEPSPEED and accelerator.state.deepspeed_plugin.zero_stage == 0:
        raise ValueError(
            "zero_stage is 0, with which DeepSpeed shards nothing and updates in other ways. Choose 1, 2 or 3, or DDP "
            "(accelerate_configs/ddp.yaml)."
        )
    if kind != DistributedType.FSDP:
        return
    plugin = accelerator.state.fsdp_plugin
    if not accelerator.is_fsdp2:
        raise ValueError(
            f"fsdp_version is {plugin.fsdp_version}, whose wrapped weights cannot be gathered for a rollout. Set "
            "fsdp_version: 2, as in accelerate_configs/fsdp2.yaml."
        )
    if plugin.cpu_ram_efficient_loading:
        raise ValueError(
            "fsdp_cpu_ram_efficient_loading leaves the weights of every process but the first empty until they are "
            "sharded, while reference and critic are copied from them before. Set it to false, as in "
            "accelerate_configs/fsdp2.yaml."
        )


def check_each_node(args: TrainingArguments, accelerator: Accelerator) -> None:
    """Refuses to save on each machine by itself what only all of them together hold.

    Raises:
        ValueError: With what to do instead.
    """
    kind = accelerator.distributed_type
    is_one_machine = int(os.environ.get("LOCAL_WORLD_SIZE", args.world_size)) == args.world_size
    if not args.save_on_each_node or is_one_machine or kind not in (DistributedType.DEEPSPEED, DistributedType.FSDP):
        return
    raise ValueError(
        f"save_on_each_node saves on the disk of each machine, but under {kind.value} a checkpoint consists of what "
        "all of them write. Set it to false with an output_dir on a file system that all see, or train with DDP."
    )


def keep_optimizer(accelerator: Accelerator, optimizer: torch.optim.Optimizer) -> None:
    """Has DeepSpeed's offload run the optimizer that was asked for.

    accelerate puts DeepSpeed's own Adam for CPUs in the place of any optimizer of which it knows no version for CPUs.
    Adam and AdamW are the same there, and faster.
    """
    plugin = accelerator.state.deepspeed_plugin
    if plugin is not None and type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW):
        plugin.deepspeed_config.setdefault("zero_force_ds_cpu_optimizer", False)


def is_zero3(accelerator: Accelerator) -> bool:
    return accelerator.distributed_type == DistributedType.DEEPSPEED and (
        accelerator.state.deepspeed_plugin.zero_stage == 3
    )


def shards_weights(accelerator: Accelerator) -> bool:
    """Whether a process holds only its part of the weights, so that a forward pass is the work of all."""
    return accelerator.distributed_type == DistributedType.FSDP or is_zero3(accelerator)


def whole_weights(*models: nn.Module, changed: bool = False) -> AbstractContextManager:
    """Gathers the weights of models that ZeRO-3 has sharded while loading them; every process enters it.

    Args:
        models: As loaded, not yet wrapped for training. Those that are not sharded stay as they are.
        changed (`bool`): Spread the weights of the first process at the end, instead of dropping what was gathered.
    """
    if not is_deepspeed_zero3_enabled():
        return nullcontext()
    import deepspeed

    parameters = [parameter for model in models for parameter in model.parameters()]
    return deepspeed.zero.GatheredParameters(parameters, modifier_rank=0 if changed else None)


def whole_parameter(parameter: nn.Parameter, changed: bool = False) -> AbstractContextManager:
    """The same for one parameter, at any time; every process enters it."""
    if not hasattr(parameter, "ds_id"):
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters([parameter], modifier_rank=0 if changed else None)


def whole_tensor(tensor: Tensor) -> Tensor:
    """Gathers what FSDP2 holds in parts; every process calls it. Other tensors stay as they are."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def reshard(wrapped: nn.Module) -> None:
    """After a pass without a backward FSDP2 keeps some weights whole, in the precision that it computes in."""
    for module in wrapped.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def is_sharded(model: nn.Module) -> bool:
    """Whether ZeRO-3 has sharded a model while loading it."""
    return any(hasattr(parameter, "ds_id") for parameter in model.parameters())


@contextmanager
def loading_whole(args: TrainingArguments) -> Iterator[None]:
    """Models that are made inside are not sharded at once under ZeRO-3."""
    if not is_deepspeed_zero3_enabled():
        yield
        return
    config = getattr(args, "hf_deepspeed_config", None) or args.deepspeed_plugin.dschf
    unset_hf_deepspeed_config()
    try:
        yield
    finally:
        set_hf_deepspeed_config(config)


def without_copies(model: nn.Module, weights: dict[str, Tensor] | None) -> dict[str, Tensor] | None:
    """Drops weights that are another one's (tied embeddings) from gathered ones, where nothing else says so.

    Args:
        model (`nn.Module`): The unwrapped model.
        weights (`dict[str, Tensor]`, *optional*): By the names of its `state_dict`.
    """
    if weights is None:
        return None
    own = {name for name, _ in model.named_parameters()}
    copies = {name for name, _ in model.named_parameters(remove_duplicate=False)} - own
    return {name: tensor for name, tensor in weights.items() if name not in copies}
