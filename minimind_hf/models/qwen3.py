# SPDX-License-Identifier: Apache-2.0
"""MiniMind's config as a Qwen3 or Qwen3-MoE config, and back.

They describe the same function, tensor by tensor; only their keys differ. What MiniMind cannot express (biases,
sliding windows, layers without experts) is refused by name.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig, Qwen3Config, Qwen3MoeConfig

from .configuration_minimind import MiniMindConfig
from .pth import ConversionError

_SERVER_YARN_KEY = "attn_factor"
_SHARED_FIELDS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "max_position_embeddings",
    "initializer_range",
    "rms_norm_eps",
    "use_cache",
    "tie_word_embeddings",
    "rope_parameters",
    "attention_dropout",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
)
_MOE_FIELDS = (
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "norm_topk_prob",
    "router_aux_loss_coef",
)


def to_qwen3_config(config: MiniMindConfig) -> Qwen3Config | Qwen3MoeConfig:
    """Returns the Qwen3 (dense) or Qwen3-MoE config of the same function as a MiniMind config.

    Args:
        config (`MiniMindConfig`): The architecture.

    Returns:
        `Qwen3Config` or `Qwen3MoeConfig`: A config that transformers, SGLang and vLLM know without our code.
    """
    values = fields_of(config, _SHARED_FIELDS)
    values["rope_parameters"] = dict(config.rope_parameters)
    if not config.use_moe:
        return Qwen3Config(**values)
    return Qwen3MoeConfig(**values, **fields_of(config, _MOE_FIELDS))


def from_qwen3_config(config: Qwen3Config | Qwen3MoeConfig) -> MiniMindConfig:
    """Returns the MiniMind config of the same function as a Qwen3 or Qwen3-MoE config.

    Args:
        config (`Qwen3Config` or `Qwen3MoeConfig`): The architecture.

    Returns:
        `MiniMindConfig`: The same with MiniMind's keys.

    Raises:
        ConversionError: If the model has a part that MiniMind lacks.
    """
    moe = isinstance(config, Qwen3MoeConfig)
    unlike = [name for name in ("attention_bias", "sliding_window") if getattr(config, name)]
    if moe:
        unlike += ["mlp_only_layers"] if config.mlp_only_layers else []
        unlike += ["decoder_sparse_step"] if config.decoder_sparse_step != 1 else []
    if unlike:
        values = ", ".join(f"{name}={getattr(config, name)}" for name in unlike)
        raise ConversionError(
            f"This {config.model_type} model cannot be a MiniMind: {values}. Use it in transformers without "
            "conversion."
        )
    values = fields_of(config, _SHARED_FIELDS + (_MOE_FIELDS if moe else ()))
    values["head_dim"] = getattr(config, "head_dim", None)
    values["rope_parameters"] = {
        key: value for key, value in config.rope_parameters.items() if key != _SERVER_YARN_KEY
    }
    return make_config({"use_moe": moe, **values})


def add_server_keys(config_file: Path):
    """Adds the keys that other readers of the folder expect to those of transformers 5.

    SGLang and vLLM read `num_experts` (transformers can write its alias `num_local_experts`); transformers 4 and the
    converter of llama.cpp read `rope_theta` and `rope_scaling`. SGLang and vLLM do not read `attention_factor`, but
    multiply YaRN's own attention factor `0.1 * ln(factor) + 1` by `attn_factor`.
    """
    content = json.loads(config_file.read_text(encoding="utf-8"))
    if "num_local_experts" in content:
        content["num_experts"] = content["num_local_experts"]
    rope = content["rope_parameters"]
    content["rope_theta"] = rope["rope_theta"]
    if rope["rope_type"] == "yarn":
        yarn_default = 0.1 * math.log(rope["factor"]) + 1
        rope[_SERVER_YARN_KEY] = rope.get("attention_factor", yarn_default) / yarn_default
        content["rope_scaling"] = {key: value for key, value in rope.items() if key != "rope_theta"}
    config_file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def fields_of(config: PreTrainedConfig, names: Iterable[str]) -> dict[str, Any]:
    """Returns the named values that a config has."""
    return {name: getattr(config, name) for name in names if hasattr(config, name)}


def make_config(values: Mapping[str, Any]) -> MiniMindConfig:
    """Returns a MiniMind config. Values that do not fit together raise a [`ConversionError`]."""
    try:
        return MiniMindConfig(**values)
    except (TypeError, ValueError) as error:
        raise ConversionError(f"The config is not valid: {error}") from error
