# SPDX-License-Identifier: Apache-2.0
"""Weights that are sharded over processes: which modes the trainers support, and how to get whole weights.

Under ZeRO-3 weights are sharded when they are loaded, under FSDP2 when the trainer wraps the model. Copies (reference,
critic) are made before that, from whole weights.
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
    """Refuses modes that the trainers do not support.

    Raises:
        ValueError: With the mode and what to use instead.
    """
    kind = accelerator.distributed_type
    if kind not in SUPPORTED:
        raise ValueError(
            f"distributed_type is {kind.value}, but the trainers run only in one process, under DDP, DeepSpeed ZeRO "
            "and FSDP2. Choose one of the files in accelerate_configs/."
        )
    if kind == DistributedType.DEEPSPEED and accelerator.state.deepspeed_plugin.zero_stage == 0:
        raise ValueError(
            "zero_stage is 0, for which DeepSpeed shards nothing and updates differently. Choose 1, 2 or 3, or DDP "
            "(accelerate_configs/ddp.yaml)."
        )
    if kind != DistributedType.FSDP:
        return
    plugin = accelerator.state.fsdp_plugin
    if not accelerator.is_fsdp2:
        raise ValueError(
            f"fsdp_version is {plugin.fsdp_version}, but its wrapped weights cannot be gathered for a rollout. Set "
            "fsdp_version: 2, as in accelerate_configs/fsdp2.yaml."
        )
    if plugin.cpu_ram_efficient_loading:
        raise ValueError(
            "fsdp_cpu_ram_efficient_loading is true. It leaves the weights empty in all processes but the first until "
            "they are sharded, but reference and critic are copied from them before that. Set it to false, as in "
            "accelerate_configs/fsdp2.yaml."
        )


def check_each_node(args: TrainingArguments, accelerator: Accelerator) -> None:
    """Refuses `save_on_each_node` if no machine has a whole checkpoint.

    Raises:
        ValueError: Naming the setting and the alternatives.
    """
    kind = accelerator.distributed_type
    is_one_machine = int(os.environ.get("LOCAL_WORLD_SIZE", args.world_size)) == args.world_size
    if not args.save_on_each_node or is_one_machine or kind not in (DistributedType.DEEPSPEED, DistributedType.FSDP):
        return
    raise ValueError(
        f"save_on_each_node is true, but under {kind.value} a checkpoint consists of the files of all machines. Set "
        "it to false and put output_dir on a file system that all machines share, or train with DDP."
    )


def keep_optimizer(accelerator: Accelerator, optimizer: torch.optim.Optimizer) -> None:
    """Makes DeepSpeed's offload use the chosen optimizer.

    accelerate replaces any optimizer without a CPU version that it knows by DeepSpeed's own Adam for CPUs. For Adam
    and AdamW this is the same and faster.
    """
    plugin = accelerator.state.deepspeed_plugin
    if plugin is not None and type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW):
        plugin.deepspeed_config.setdefault("zero_force_ds_cpu_optimizer", False)


def is_zero3(accelerator: Accelerator) -> bool:
    return accelerator.distributed_type == DistributedType.DEEPSPEED and (
        accelerator.state.deepspeed_plugin.zero_stage == 3
    )


def shards_weights(accelerator: Accelerator) -> bool:
    """Whether a process has only its part of the weights, so that all processes must make a forward pass together."""
    return accelerator.distributed_type == DistributedType.FSDP or is_zero3(accelerator)


def whole_weights(*models: nn.Module, changed: bool = False) -> AbstractContextManager:
    """Gathers the weights of models that ZeRO-3 sharded while loading. Every process enters it.

    Args:
        models: Loaded models, not yet wrapped for training. Those that are not sharded do not change.
        changed (`bool`): At the end, distribute the weights of the first process instead of dropping them.
    """
    if not is_deepspeed_zero3_enabled():
        return nullcontext()
    import deepspeed

    parameters = [parameter for model in models for parameter in model.parameters()]
    return deepspeed.zero.GatheredParameters(parameters, modifier_rank=0 if changed else None)


def whole_parameter(parameter: nn.Parameter, changed: bool = False) -> AbstractContextManager:
    """The same for one parameter, at any time. Every process enters it."""
    if not hasattr(parameter, "ds_id"):
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters([parameter], modifier_rank=0 if changed else None)


def whole_tensor(tensor: Tensor) -> Tensor:
    """Gathers a tensor that FSDP2 sharded; other tensors are returned unchanged. Every process calls it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def reshard(wrapped: nn.Module) -> None:
    """Shards again the weights that FSDP2 keeps whole, in compute precision, after a pass without backward."""
    for module in wrapped.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def is_sharded(model: nn.Module) -> bool:
    """Whether ZeRO-3 sharded a model while loading it."""
    return any(hasattr(parameter, "ds_id") for parameter in model.parameters())


@contextmanager
def loading_whole(args: TrainingArguments) -> Iterator[None]:
    """Under ZeRO-3, models that are made inside are not sharded at once."""
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
    """Drops copies of other weights (tied embeddings) from gathered weights, which do not mark them.

    Args:
        model (`nn.Module`): The unwrapped model.
        weights (`dict[str, Tensor]`, *optional*): Weights by their names in its `state_dict`.
    """
    if weights is None:
        return None
    own = {name for name, _ in model.named_parameters()}
    copies = {name for name, _ in model.named_parameters(remove_duplicate=False)} - own
    return {name: tensor for name, tensor in weights.items() if name not in copies}
