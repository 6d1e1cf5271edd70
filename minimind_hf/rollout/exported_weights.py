# SPDX-License-Identifier: Apache-2.0
"""The policy's weights as an inference server loads them: with the names of a saved folder and with adapters merged.

The trainer's own weights do not change: layers with adapters are copied and merged one at a time, and layers without
adapters are not copied. Tensors keep their dtype.
"""

import copy
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper, ModulesToSaveWrapper
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, Qwen3Config, Qwen3MoeConfig
from transformers.core_model_loading import revert_weight_conversion

from ..forward.introspection import refuse_learned_prompts, unwrap
from ..models import MiniMindConfig
from ..models.qwen3 import add_server_keys, to_qwen3_config


@torch.no_grad()
def exported_weights(model: nn.Module) -> dict[str, Tensor]:
    """Returns the tensors of a model folder by their names in it; without adapters they share the model's memory.

    Args:
        model (`nn.Module`): The policy with whole weights, without the wrappers of a distributed run, with or without
            peft.

    Raises:
        ValueError: If a server cannot compute the same function from such a folder (prompt learning, quantized
            weights, adapters that untie embeddings).
    """
    base = unwrap(model)
    refuse_learned_prompts(model)
    state = {name: tensor.detach() for name, tensor in _merged_state(base).items()}
    _refuse_quantized(state)
    _drop_tied(base, state)
    return revert_weight_conversion(base, state)


def exported_config(model: nn.Module) -> PreTrainedConfig:
    """Returns the config of that folder. For MiniMind it is a Qwen3 config, which servers know without our code."""
    config = unwrap(model).config
    return to_qwen3_config(config) if isinstance(config, MiniMindConfig) else config


def server_architectures(model: nn.Module) -> set[str]:
    """Returns the class names under which a server may serve these weights."""
    base = unwrap(model)
    names = {type(base).__name__, *(base.config.architectures or ())}
    if isinstance(base.config, MiniMindConfig):
        names.add("Qwen3MoeForCausalLM" if base.config.use_moe else "Qwen3ForCausalLM")
    return names


def write_weights(weights: dict[str, Tensor], config: PreTrainedConfig, folder: Path) -> None:
    """Writes a folder from which a server loads weights, without a tokenizer."""
    # The writer treats tensors that share memory as one tensor, and all experts share the memory of their layer.
    save_torch_state_dict({name: _own_memory(tensor) for name, tensor in weights.items()}, folder)
    config.save_pretrained(folder)
    if isinstance(config, Qwen3Config | Qwen3MoeConfig):
        add_server_keys(folder / "config.json")


def _merged_state(base: PreTrainedModel) -> dict[str, Tensor]:
    """The state of the model with its adapters merged."""
    changed = {
        name: module
        for name, module in base.named_modules()
        if isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper)
    }
    outermost = [name for name in changed if not any(name.startswith(f"{other}.") for other in changed)]
    state = {
        name: tensor
        for name, tensor in base.state_dict().items()
        if not any(name.startswith(f"{prefix}.") for prefix in outermost)
    }
    for prefix in outermost:
        merged = _merged_copy(prefix, changed[prefix]).state_dict()
        state |= {f"{prefix}.{name}": tensor for name, tensor in merged.items()}
    return state


def _merged_copy(name: str, module: nn.Module) -> nn.Module:
    if isinstance(module, ModulesToSaveWrapper):
        active = [adapter for adapter in module.active_adapters if adapter in module.modules_to_save]
        return module.modules_to_save[active[0]] if active else module.original_module
    if not isinstance(module, BaseTunerLayer):
        raise ValueError(
            f"{name!r} is trained by a {type(module).__name__}, which cannot be merged into a copy of the weights for "
            "a rollout server. Use rollout_engine='torch', or adapters on linear layers."
        )
    copied = copy.deepcopy(module)
    for layer in [layer for layer in copied.modules() if isinstance(layer, BaseTunerLayer)]:
        layer.merge()
    return copied.get_base_layer()


def _own_memory(tensor: Tensor) -> Tensor:
    is_whole = tensor.untyped_storage().nbytes() == tensor.nbytes
    return tensor if is_whole and tensor.is_contiguous() else tensor.clone(memory_format=torch.contiguous_format)


def _refuse_quantized(state: dict[str, Tensor]) -> None:
    for name, tensor in state.items():
        if not tensor.is_floating_point():
            raise ValueError(
                f"{name!r} has the dtype {tensor.dtype}: quantized weights cannot be sent to a rollout server. Load "
                "the model without quantization, or use rollout_engine='torch'."
            )


def _drop_tied(base: PreTrainedModel, state: dict[str, Tensor]) -> None:
    """Drops tensors that are another tensor under a second name."""
    for name, source in (base.all_tied_weights_keys or {}).items():
        if name not in state or source not in state:
            continue
        if not torch.equal(state[name], state[source]):
            raise ValueError(
                f"The model ties {name!r} to {source!r}, but adapters changed one of them, which a saved folder "
                "cannot express. Leave the embeddings out of target_modules, or untie them before training "
                "(tie_word_embeddings=False)."
            )
        del state[name]
