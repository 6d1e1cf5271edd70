# SPDX-License-Identifier: Apache-2.0
"""Which models the lean decoder computes exactly: MiniMind, Llama, Qwen2, Qwen3 and Qwen3-MoE of transformers.

A model is checked for everything that makes it compute something else (a sliding window, another activation, a
quantized layer, a hook), and the reason is named.
"""

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ...forward.introspection import quantisation, unwrap

ARCHITECTURES = frozenset(
    ["MiniMindForCausalLM", "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"]
)
# RoPE whose frequencies do not depend on the length of the sequence
ROPE_TYPES = frozenset(["default", "linear", "yarn", "llama3"])
ATTENTION_LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP_LINEARS = ("gate_proj", "up_proj", "down_proj")


def why_not_fast(model: nn.Module) -> str | None:
    """Returns why the lean decoder cannot replace this model's forward; `None` if it can."""
    if any(config.is_prompt_learning for config in getattr(model, "peft_config", {}).values()):
        return "its adapter learns a prompt"
    model = unwrap(model)
    name = type(model).__name__
    if name not in ARCHITECTURES:
        return f"{name} is not one of {', '.join(sorted(ARCHITECTURES))}"
    if method := quantisation(model):
        return f"its linear layers are quantised ({method})"
    return _fault_of_config(model.config) or _fault_of_layers(model) or _fault_of_modules(model)


def _fault_of_config(config) -> str | None:
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act!r}, not 'silu'"
    windowed = {kind for kind in getattr(config, "layer_types", None) or [] if kind != "full_attention"}
    if windowed or (getattr(config, "use_sliding_window", True) and getattr(config, "sliding_window", None)):
        return "it has sliding-window attention"
    rope = (config.rope_parameters or {}).get("rope_type", "default")
    if rope not in ROPE_TYPES:
        return f"its RoPE is of type {rope!r}, not one of {', '.join(sorted(ROPE_TYPES))}"
    if (config.rope_parameters or {}).get("partial_rotary_factor", 1.0) != 1.0:
        return "its RoPE rotates only a part of each head"
    return None


def _fault_of_layers(model: nn.Module) -> str | None:
    linears, norms, experts = [model.lm_head], [model.model.norm], []
    for layer in model.model.layers:
        norms += [layer.input_layernorm, layer.post_attention_layernorm]
        norms += [getattr(layer.self_attn, name) for name in ("q_norm", "k_norm") if hasattr(layer.self_attn, name)]
        linears += [getattr(layer.self_attn, name) for name in ATTENTION_LINEARS]
        if hasattr(layer.mlp, "experts"):
            experts += [layer.mlp.experts, layer.mlp.gate]
        else:
            linears += [getattr(layer.mlp, name) for name in MLP_LINEARS]
    for linear in linears:
        if type(linear) is not nn.Linear and not _is_plain_lora(linear):
            return f"one of its linear layers is a {_full_name(linear)}"
    for module in norms + experts:
        if not type(module).__module__.startswith("transformers.models."):
            return f"one of its norms or experts is a {_full_name(module)}"
    if type(model.model.embed_tokens) is not nn.Embedding:
        return f"its embedding is a {_full_name(model.model.embed_tokens)}"
    return None


def _fault_of_modules(model: nn.Module) -> str | None:
    for name, module in model.named_modules():
        if module._forward_hooks or module._forward_pre_hooks:
            return f"its module {name or type(model).__name__!r} has forward hooks"
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) > 1:
        return f"its parameters are on several devices ({', '.join(sorted(map(str, devices)))})"
    if not _is_plain(*model.parameters()):
        return "its parameters are sharded or of a special tensor type"
    return None


def _is_plain(*tensors: Tensor) -> bool:
    return all(type(tensor) in (Tensor, nn.Parameter) and not isinstance(tensor.data, DTensor) for tensor in tensors)


def _is_plain_lora(module: nn.Module) -> bool:
    """Whether a layer is LoRA without variants (DoRA and the like) around an `nn.Linear`."""
    from peft.tuners import lora

    return (
        type(module) is lora.Linear
        and type(module.base_layer) is nn.Linear
        and not module.lora_variant
        and not any(module.lora_bias.values())
        and not (module.merged and module.disable_adapters)
    )


def _full_name(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def linear_weight(module: nn.Module) -> Tensor:
    """Returns the effective weight of a supported layer: with LoRA, base and active adapters together."""
    if type(module) is nn.Linear:
        return module.weight
    weight = module.base_layer.weight
    if module.merged or module.disable_adapters:
        return weight
    active = [name for name in module.active_adapters if name in module.lora_A]
    deltas = [module.get_delta_weight(name) for name in active]
    return sum((delta.to(weight.dtype) for delta in deltas), start=weight)
