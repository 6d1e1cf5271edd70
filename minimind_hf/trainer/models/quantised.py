# SPDX-License-Identifier: Apache-2.0
"""Policies whose base is quantised (QLoRA): what cannot be done with them is refused, and gradients are kept alive."""

from torch import nn
from transformers.utils.import_utils import is_bitsandbytes_available

from ...forward.introspection import quantisation
from ..settings.base import RLConfig


def prepare_quantised(model: nn.Module, args: RLConfig, has_adapters: bool) -> None:
    """Prepares a policy with quantised layers, if it is one.

    Raises:
        ValueError: If the run needs the weights themselves, with the setting and what to do instead.
    """
    method = quantisation(model)
    if method is None:
        return
    remedy = _remedy(args, has_adapters)
    if remedy is not None:
        raise ValueError(
            f"The model's weights are quantised ({method}): {remedy}, or load it without quantization_config."
        )
    if is_bitsandbytes_available():
        _stay_trainable(model)


def _remedy(args: RLConfig, has_adapters: bool) -> str | None:
    if not has_adapters:
        return "they cannot be trained. Pass peft_config (--use_peft) to train adapters on them"
    if args.merge_adapters:
        return (
            "merge_adapters=True would round the adapters to so few bits. Leave it off, and merge them into the base "
            "without quantization_config afterwards (PeftModel.from_pretrained(base, folder).merge_and_unload())"
        )
    if args.rollout_engine == "sglang":
        return "they cannot be sent to a server. Use rollout_engine='torch'"
    return None


def _stay_trainable(model: nn.Module) -> None:
    """Keeps 4-bit layers in the format that has a backward pass.

    At its first evaluation on a CPU with bfloat16 instructions, bitsandbytes packs them for a kernel without one:
    after the first rollout no gradient would pass, and nothing would say so.
    """
    from bitsandbytes.nn import Linear4bit

    layers = [module for module in model.modules() if isinstance(module, Linear4bit)]
    for layer in layers:
        if getattr(getattr(layer.weight, "quant_state", None), "packing_format_for_cpu", False):
            raise ValueError(
                "The model's 4-bit layers were packed by bitsandbytes for inference on this CPU, when the model was "
                "evaluated, and no gradient passes them. Load the model again, and train it before it is evaluated."
            )
        layer.support_avx512bf16_for_cpu = False
