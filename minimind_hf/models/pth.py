# SPDX-License-Identifier: Apache-2.0
"""MiniMind's `.pth`: the names and shapes of its tensors, the config that follows from them, reading and writing.

The file is a plain state dict. It is read with `weights_only=True`, so that a pickle that would run code is refused.
"""

import math
import os
import pickle
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import torch
from transformers.core_model_loading import revert_weight_conversion

from .configuration_minimind import MiniMindConfig
from .modeling_minimind import MiniMindForCausalLM

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
# The order in which MiniMind's own files list the modules of a layer, and those outside.
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")
_NORMS = ("input_layernorm", "post_attention_layernorm")
_FEED_FORWARD = ("gate", "gate_proj", "down_proj", "up_proj")
_ORDER = ("embed_tokens", *_ATTENTION, *_NORMS, *_FEED_FORWARD, "norm", "lm_head")
# RoPE tables that some MiniMind scripts also saved; they follow from the config.
_TABLES = {"model.freqs_cos", "model.freqs_sin"}


class ConversionError(ValueError):
    """A checkpoint cannot be converted. The message names the cause and the remedy."""


def expected_shapes(config: MiniMindConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of MiniMind's tensors, in the order of MiniMind's own files.

    Args:
        config (`MiniMindConfig`): The architecture.

    Returns:
        `dict[str, tuple[int, ...]]`: `lm_head.weight`, which MiniMind stores even when tied, comes last.
    """
    with torch.device("meta"):
        model = MiniMindForCausalLM(config)
    tensors = revert_weight_conversion(model, model.state_dict())
    return {name: tuple(tensors[name].shape) for name in sorted(tensors, key=_place)}


def _place(name: str) -> tuple[float, int, int]:
    layer, expert = (re.search(rf"\.{part}\.(\d+)\.", name) for part in ("layers", "experts"))
    outside = -1 if name == EMBEDDING else math.inf
    return (
        int(layer[1]) if layer else outside,
        int(expert[1]) if expert else -1,
        _ORDER.index(name.split(".")[-2]),
    )


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Reads the tensors of a MiniMind `.pth` without running any code in the file.

    Args:
        path (`Path`): A state dict, or a resume file of MiniMind with one under `"model"`.

    Returns:
        `dict[str, torch.Tensor]`: The tensors on the CPU, in the order of the file.

    Raises:
        ConversionError: If the file is unreadable, holds other objects than tensors, or is not a state dict.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ConversionError(
            f"{path} is refused, because it holds more than tensors or is not a torch file ({_first_line(error)}). "
            "Unpickling such a file could run code, so only plain state dicts are read. Save one with "
            "torch.save(model.state_dict(), path)."
        ) from error
    except (RuntimeError, EOFError, BadZipFile, KeyError, ValueError, OSError) as error:
        raise ConversionError(
            f"{path} cannot be read as a torch checkpoint. It may be truncated or another kind of file "
            f"({type(error).__name__}: {_first_line(error)}). Copy or download it again."
        ) from error
    if isinstance(content, Mapping) and isinstance(content.get("model"), Mapping):
        content = content["model"]  # MiniMind's resume files have the weights next to the optimizer
    if not isinstance(content, Mapping) or not content:
        raise ConversionError(f"{path} holds {_describe(content)}, not a state dict of named tensors.")
    strangers = [str(name) for name, value in content.items() if not isinstance(value, torch.Tensor)]
    if strangers:
        raise ConversionError(
            f"{path} is not a MiniMind state dict, because these entries are not tensors: {listed(strangers)}. Save "
            "only model.state_dict()."
        )
    return {name: tensor for name, tensor in content.items() if name not in _TABLES}


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def infer_config(weights: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Infers the config from MiniMind's tensors, as far as possible.

    Top-k, YaRN, theta, epsilons and token ids leave no trace in the tensors and are not in the result.

    Args:
        weights (`Mapping[str, torch.Tensor]`): Tensors with MiniMind's names.

    Returns:
        `dict[str, Any]`: Arguments for [`MiniMindConfig`].

    Raises:
        ConversionError: If a tensor that every MiniMind has is missing or has an impossible shape.
    """
    _refuse_minimind2(weights)
    vocab_size, hidden_size = _shape(weights, EMBEDDING, 2)
    layers = [int(found[1]) for name in weights if (found := re.match(r"model\.layers\.(\d+)\.", name))]
    (head_dim,) = _shape(weights, "model.layers.0.self_attn.q_norm.weight", 1)
    queries, _ = _shape(weights, "model.layers.0.self_attn.q_proj.weight", 2)
    keys, _ = _shape(weights, "model.layers.0.self_attn.k_proj.weight", 2)
    if queries % head_dim or keys % head_dim:
        raise ConversionError(
            f"{queries} query and {keys} key channels are not multiples of the head width {head_dim} (of q_norm), so "
            "this is not a MiniMind checkpoint. Use the file of a MiniMind model."
        )
    inferred = {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": max(layers) + 1,
        "num_attention_heads": queries // head_dim,
        "num_key_value_heads": keys // head_dim,
        "head_dim": head_dim,
    }
    gate = "model.layers.0.mlp.gate.weight"
    if gate not in weights:
        return inferred | {"intermediate_size": _shape(weights, "model.layers.0.mlp.gate_proj.weight", 2)[0]}
    width, _ = _shape(weights, "model.layers.0.mlp.experts.0.gate_proj.weight", 2)
    num_experts, _ = _shape(weights, gate, 2)
    return inferred | {
        "use_moe": True,
        "num_experts": num_experts,
        "intermediate_size": width,
        "moe_intermediate_size": width,
    }


def _refuse_minimind2(weights: Mapping[str, torch.Tensor]) -> None:
    """MiniMind2 is another architecture: that of Llama, without norms of queries and keys."""
    first_names = {"tok_embeddings.weight", "layers.0.attention.wq.weight"} <= weights.keys()
    llama_names = EMBEDDING in weights and "model.layers.0.self_attn.q_proj.weight" in weights
    if not first_names and (not llama_names or any("q_norm" in name for name in weights)):
        return
    if any(".experts." in name for name in weights):
        remedy = (
            "use its transformers folder, MiniMind2-MoE (jingyaogong/MiniMind2-MoE on the Hub), which comes with its "
            "own code, with --trust_remote_code true"
        )
    else:
        remedy = (
            "use its transformers folder, which trains here as it is: MiniMind2 or MiniMind2-Small "
            "(jingyaogong/MiniMind2 on the Hub), or write one with scripts/convert_model.py of that release "
            "(convert_torch2transformers_llama)"
        )
    raise ConversionError(
        f"This is a checkpoint of MiniMind2, an architecture of Llama's. Do not convert it; {remedy}."
    )


def _shape(weights: Mapping[str, torch.Tensor], name: str, dimensions: int) -> tuple[int, ...]:
    if name not in weights:
        raise ConversionError(
            f"The tensor {name} is missing. Every MiniMind checkpoint has it, so this is another model or an older "
            f"MiniMind. The file has {len(weights)} tensors: {listed(sorted(weights))}."
        )
    shape = tuple(weights[name].shape)
    if len(shape) != dimensions or 0 in shape:
        raise ConversionError(f"{name} has shape {shape}, but MiniMind's has {dimensions} dimension(s), none empty.")
    return shape


def save_tensors(weights: Mapping[str, torch.Tensor], config: MiniMindConfig, path: Path) -> None:
    """Writes a MiniMind `.pth`, which appears only when it is complete.

    Args:
        weights (`Mapping[str, torch.Tensor]`): Tensors with MiniMind's names. A tied head can be absent.
        config (`MiniMindConfig`): The architecture.
        path (`Path`): The file to write.
    """
    if config.tie_word_embeddings:
        weights = {**weights, HEAD: weights[EMBEDDING]}
    ordered = {name: weights[name].contiguous() for name in expected_shapes(config)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as beside:
        torch.save(ordered, Path(beside) / path.name)
        os.replace(Path(beside) / path.name, path)


def listed(names: list[str], separator: str = ", ", limit: int = 5) -> str:
    shown = separator.join(names[:limit]) or "none"
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown


def _describe(content: Any) -> str:
    return "an empty mapping" if isinstance(content, Mapping) else f"a {type(content).__name__}"


def check_shapes(config: MiniMindConfig, weights: Mapping[str, torch.Tensor], source: Path) -> None:
    """Refuses tensors that are not those of a config.

    Raises:
        ConversionError: Naming the tensors that are missing, unexpected or of another shape.
    """
    expected = expected_shapes(config)
    if config.tie_word_embeddings:
        del expected[HEAD]
    missing = [name for name in expected if name not in weights]
    unexpected = [name for name in weights if name not in expected]
    if missing or unexpected:
        raise ConversionError(
            f"{source} is not a complete MiniMind checkpoint with {config.num_hidden_layers} layers: {len(missing)} "
            f"tensors are missing ({listed(missing)}), {len(unexpected)} are unexpected ({listed(unexpected)})."
        )
    wrong = [
        f"{name} is {tuple(tensor.shape)}, expected {expected[name]}"
        for name, tensor in weights.items()
        if tuple(tensor.shape) != expected[name]
    ]
    if wrong:
        raise ConversionError(
            f"{source}: {len(wrong)} tensors do not match the config: {listed(wrong, separator='; ')}. Check the "
            "overrides, or omit them to use the sizes of the tensors."
        )
