# SPDX-License-Identifier: Apache-2.0
"""What a conversion has read, in a few lines: the model, what was assumed, and whether the tokenizer fits."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from .configuration_minimind import MiniMindConfig


def described(config: MiniMindConfig, weights: dict[str, torch.Tensor]) -> str:
    """Size and shape of a model, as in `25.83 M parameters, 8 x 512, dense, vocabulary 6400, float16`."""
    parameters = sum(tensor.numel() for tensor in weights.values()) / 1e6
    kind = f"{config.num_experts} experts" if config.use_moe else "dense"
    dtypes = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in weights.values()})
    shape = f"{config.num_hidden_layers} x {config.hidden_size}, {kind}, vocabulary {config.vocab_size}"
    return f"{parameters:.2f} M parameters, {shape}, {' and '.join(dtypes)}"


def not_in_tensors(config: MiniMindConfig, given: dict[str, Any]) -> dict[str, Any]:
    """The values that matter and leave no trace in tensors, as far as they were not given.

    Args:
        config (`MiniMindConfig`): The config that was made.
        given (`dict[str, Any]`): What was read from the tensors or given by the user.
    """
    rope = config.rope_parameters
    values = {"rope_theta": rope["rope_theta"]}
    if config.use_moe:
        values["num_experts_per_tok"] = config.num_experts_per_tok
    values |= {name: getattr(config, name) for name in ("max_position_embeddings", "rms_norm_eps", "eos_token_id")}
    if rope["rope_type"] == "default":
        values["inference_rope_scaling"] = False
    of_rope = {"rope_theta", "inference_rope_scaling"} if {"rope_parameters", "rope_scaling"} & given.keys() else set()
    return {name: value for name, value in values.items() if name not in given.keys() | of_rope}


def as_short(value: Any) -> str:
    """A value as people write it: `1e6`, `1e-6`, `false`."""
    if isinstance(value, float):
        return f"{value:g}".replace("e+0", "e").replace("e-0", "e-")
    return json.dumps(value)


def tokenizer_faults(config: MiniMindConfig, files: list[Path], is_exact: bool) -> list[str]:
    """What speaks against the tokenizer, in sentences; nothing if it fits, or if it has no tokenizer.json.

    Args:
        config (`MiniMindConfig`): The model's config.
        files (`list[Path]`): The files of the tokenizer.
        is_exact (`bool`): Whether the embeddings are as many as the tokens, as in MiniMind's files; others may be
            padded.
    """
    by_name = {file.name: file for file in files}
    if "tokenizer.json" not in by_name:
        return []
    folder, vocabulary = by_name["tokenizer.json"].parent, _vocabulary(by_name["tokenizer.json"])
    ids, faults = max(vocabulary.values()) + 1, []
    if ids > config.vocab_size:
        faults.append(
            f"the tokenizer of {folder} has {ids} tokens, the model embeds {config.vocab_size}: the last "
            f"{ids - config.vocab_size} would be an index error. Give the model's own with --tokenizer DIR."
        )
    elif ids < config.vocab_size and is_exact:
        faults.append(
            f"the tokenizer of {folder} has {ids} tokens, the model embeds {config.vocab_size}, so it is hardly the "
            "one that the model was trained with. Give that with --tokenizer DIR."
        )
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    eos = vocabulary.get(_eos_token(by_name.get("tokenizer_config.json")))
    if eos is not None and eos not in ends:
        faults.append(
            f"the tokenizer of {folder} ends with token {eos}, the config with {as_short(config.eos_token_id)}. "
            f"Choose with --config eos_token_id={eos}."
        )
    return faults


def _vocabulary(file: Path) -> dict[str, int]:
    return Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=True)


def _eos_token(file: Path | None) -> str | None:
    """The token that a tokenizer_config.json names, which older files wrap in an object."""
    if file is None:
        return None
    token = json.loads(file.read_text(encoding="utf-8")).get("eos_token")
    return token.get("content") if isinstance(token, dict) else token
