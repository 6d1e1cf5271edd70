# SPDX-License-Identifier: Apache-2.0
"""Conversion between MiniMind's `.pth`, a MiniMind folder and a plain Qwen3 / Qwen3-MoE folder.

Every reader returns a [`Checkpoint`] (config, tensors with MiniMind's names, companion files) and every writer takes
one, so any source can become any target. Tensors are moved, never computed with: unless the dtype changes, each
conversion is bit-exact. Outputs are written next to their destination and moved there when they are complete.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.core_model_loading import revert_weight_conversion

from ..paths import check_weights, holds_adapters
from .configuration_minimind import MiniMindConfig
from .described import not_in_tensors
from .modeling_minimind import MiniMindForCausalLM
from .pth import (
    EMBEDDING,
    HEAD,
    ConversionError,
    check_shapes,
    infer_config,
    listed,
    load_tensors,
    save_tensors,
)
from .qwen3 import add_server_keys, fields_of, from_qwen3_config, make_config, to_qwen3_config

TARGETS = ("minimind", "qwen3", "pth")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)
_STALE_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json")
_FORMER_MODEL = ("adapter_config.json", "adapter_model.bin", "generation_config.json")  # of what was there before
_MERGED_FOLDER = "merged"  # of training with merge_adapters
_MINIMIND_FIELDS = tuple({f.name for f in fields(MiniMindConfig)} - {f.name for f in fields(PreTrainedConfig)})


@dataclass
class Checkpoint:
    """A model between two formats.

    Args:
        config (`MiniMindConfig`): The architecture.
        weights (`dict[str, torch.Tensor]`): Tensors with MiniMind's names, `lm_head.weight` only if it is untied.
        generation_config (`GenerationConfig`, *optional*): Generation defaults of the source folder.
        tokenizer_files (`list[Path]`): Tokenizer files to copy.
        assumed (`dict[str, Any]`): Values of the config that neither the source nor the user gave.
    """

    config: MiniMindConfig
    weights: dict[str, torch.Tensor]
    generation_config: GenerationConfig | None
    tokenizer_files: list[Path]
    assumed: dict[str, Any] = field(default_factory=dict)


def convert(
    source: str | os.PathLike,
    destination: str | os.PathLike,
    *,
    to: str | None = None,
    config: Mapping[str, Any] | None = None,
    tokenizer: str | os.PathLike | None = None,
    dtype: str | None = None,
    overwrite: bool = False,
    on_read: Callable[[Checkpoint], None] = lambda checkpoint: None,
) -> Path:
    """Converts a MiniMind checkpoint from one format to another.

    Args:
        source (`str` or `os.PathLike`): A MiniMind `.pth`, or a MiniMind, Qwen3 or Qwen3-MoE folder.
        destination (`str` or `os.PathLike`): The `.pth` or folder to write.
        to (`str`, *optional*): `"minimind"`, `"qwen3"` or `"pth"`. Unset: `pth` for a destination that ends in `.pth`,
            otherwise `minimind`.
        config (`Mapping`, *optional*): Config values that override those of the tensors, the folder and the defaults.
        tokenizer (`str` or `os.PathLike`, *optional*): Folder whose tokenizer files are copied. Unset: the source's.
        dtype (`str`, *optional*): `"float32"`, `"float16"` or `"bfloat16"`. Unset: a folder keeps the source's, and a
            `.pth` is float16, as MiniMind writes it.
        overwrite (`bool`, defaults to `False`): Whether an existing destination is replaced.
        on_read (`Callable`): Called with what was read, the tokenizer included, before anything is written.

    Returns:
        `Path`: The destination.

    Raises:
        ConversionError: If the source is not such a checkpoint, the config contradicts it, or the destination exists.
    """
    source, destination = Path(source), Path(destination)
    to = _resolve_target(to, destination)
    _check_destination(source, destination, to, overwrite)
    checkpoint = read_checkpoint(source, config)
    if tokenizer is not None:
        checkpoint.tokenizer_files = _tokenizer_files(Path(tokenizer), required=True)
    on_read(checkpoint)
    checkpoint.weights = _cast(checkpoint.weights, dtype or ("float16" if to == "pth" else None))
    if to == "pth":
        save_tensors(checkpoint.weights, checkpoint.config, destination)
    else:
        _write_folder(_build_model(checkpoint, to), checkpoint, destination)
    return destination


def read_checkpoint(source: str | os.PathLike, overrides: Mapping[str, Any] | None = None) -> Checkpoint:
    """Reads a MiniMind `.pth` or a MiniMind, Qwen3 or Qwen3-MoE folder.

    Args:
        source (`str` or `os.PathLike`): File or folder.
        overrides (`Mapping`, *optional*): Values for [`MiniMindConfig`] that take precedence.

    Returns:
        `Checkpoint`: Config and tensors, checked against each other.

    Raises:
        ConversionError: If the source is missing, unreadable or not a MiniMind checkpoint.
    """
    source, overrides = Path(source), check_overrides(overrides or {})
    if source.is_dir():
        checkpoint = _read_folder(source, overrides)
    elif source.is_file():
        checkpoint = _read_pth(source, overrides)
    else:
        raise ConversionError(f"{source} does not exist. Give a MiniMind .pth file or a model folder.")
    check_shapes(checkpoint.config, checkpoint.weights, source)
    return checkpoint


# Reading


def _read_pth(path: Path, overrides: Mapping[str, Any]) -> Checkpoint:
    weights = load_tensors(path)
    inferred = infer_config(weights)
    tied = HEAD not in weights or torch.equal(weights[HEAD], weights[EMBEDDING])
    config = make_config({"tie_word_embeddings": tied, **inferred, **overrides})
    assumed = not_in_tensors(config, {**inferred, **overrides})
    return Checkpoint(config, _without_tied_head(weights, config), None, [], assumed)


def _read_folder(folder: Path, overrides: Mapping[str, Any]) -> Checkpoint:
    _refuse_adapters(folder)
    if not (folder / "config.json").is_file():
        raise ConversionError(f"{folder} has no config.json. Give a folder written by save_pretrained.")
    config = _load_config(folder)
    try:
        check_weights(folder)
        model, report = AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype="auto", output_loading_info=True, trust_remote_code=False
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise ConversionError(f"The weights of {folder} cannot be read: {error}") from error
    _refuse_incomplete(folder, report)
    weights = revert_weight_conversion(model, model.state_dict())
    minimind = config if isinstance(config, MiniMindConfig) else from_qwen3_config(config)
    if overrides:
        minimind = _override(minimind, overrides)
    generation = model.generation_config if (folder / "generation_config.json").is_file() else None
    files = _tokenizer_files(folder, required=False)
    return Checkpoint(minimind, _without_tied_head(weights, minimind), generation, files)


def _refuse_adapters(folder: Path) -> None:
    if not holds_adapters(folder):
        return
    merged = folder / _MERGED_FOLDER
    remedy = (
        f"Convert the merged model {merged} instead."
        if merged.is_dir()
        else "Merge them first: train with merge_adapters=True, which also saves the merged model, or use "
        f'AutoPeftModelForCausalLM.from_pretrained("{folder}").merge_and_unload().save_pretrained(FOLDER).'
    )
    raise ConversionError(f"{folder} holds adapters, not a whole model. {remedy}")


def _load_config(folder: Path) -> PreTrainedConfig:
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ConversionError(f"The config of {folder} cannot be read: {error}") from error
    if not isinstance(config, MiniMindConfig | Qwen3Config | Qwen3MoeConfig):
        raise ConversionError(
            f"{folder} is a {config.model_type} model. Only minimind, qwen3 and qwen3_moe folders can be converted. "
            "To train it or to talk to it, use the folder as it is."
        )
    return config


def _refuse_incomplete(folder: Path, report: Mapping[str, Any]):
    problems = {
        "missing": report["missing_keys"],
        "unexpected": report["unexpected_keys"],
        "of another shape": report["mismatched_keys"],
    }
    found = [f"{kind}: {listed(sorted(map(str, names)))}" for kind, names in problems.items() if names]
    if found:
        raise ConversionError(f"{folder}: weights do not fit config.json. Tensors {'; '.join(found)}. Copy it again.")


# Config


def _override(config: MiniMindConfig, overrides: Mapping[str, Any]) -> MiniMindConfig:
    values = fields_of(config, _MINIMIND_FIELDS)
    if not {"rope_parameters", "rope_scaling"} & set(overrides):
        # the YaRN switch or a new theta replaces the folder's value and keeps the other one
        keep = {"rope_theta": config.rope_parameters["rope_theta"]}
        if "inference_rope_scaling" not in overrides:
            keep = dict(config.rope_parameters)
        values["rope_parameters"] = keep | {key: overrides[key] for key in ("rope_theta",) if key in overrides}
    return make_config({**values, **overrides})


def check_overrides(overrides: Mapping[str, Any]) -> dict[str, Any]:
    known = {field.name for field in fields(MiniMindConfig)}
    known |= {"rope_theta", "rope_scaling", "inference_rope_scaling", "dropout", "flash_attn"}
    described = {"model_type", "architectures", "auto_map", "transformers_version", "torch_dtype"}
    unknown = sorted(set(overrides) - known - described)
    if unknown:
        raise ConversionError(f"Unknown config key(s) {', '.join(unknown)}. Known: {', '.join(sorted(known))}.")
    # dtype, architectures and the like describe the source of the config, not the architecture
    return {name: value for name, value in overrides.items() if name not in described | {"dtype"}}


def _without_tied_head(weights: Mapping[str, torch.Tensor], config: MiniMindConfig) -> dict[str, torch.Tensor]:
    if not config.tie_word_embeddings or HEAD not in weights:
        return dict(weights)
    if not torch.equal(weights[HEAD], weights[EMBEDDING]):
        raise ConversionError(
            f"tie_word_embeddings is True, but {HEAD} and {EMBEDDING} differ. Set tie_word_embeddings=false to keep "
            "both."
        )
    return {name: tensor for name, tensor in weights.items() if name != HEAD}


def _cast(weights: dict[str, torch.Tensor], dtype: str | None) -> dict[str, torch.Tensor]:
    if dtype is None:
        found = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in weights.values()})
        if len(found) > 1:
            raise ConversionError(f"The tensors have different dtypes ({', '.join(found)}). Choose one with dtype.")
        return weights
    if dtype not in DTYPES:
        raise ConversionError(f"Unknown dtype {dtype!r}. Choose one of {', '.join(DTYPES)}.")
    cast = {name: tensor.to(DTYPES[dtype]) for name, tensor in weights.items()}
    overflown = [name for name, tensor in cast.items() if tensor.isinf().any() and not weights[name].isinf().any()]
    if overflown:
        raise ConversionError(f"{dtype} cannot hold the values of {listed(overflown)}. Choose bfloat16 or float32.")
    return cast


# Writing


def _build_model(checkpoint: Checkpoint, to: str) -> PreTrainedModel:
    config = checkpoint.config
    if to == "minimind":
        model_class = MiniMindForCausalLM
    else:
        model_class = Qwen3MoeForCausalLM if config.use_moe else Qwen3ForCausalLM
        config = to_qwen3_config(config)
    dtype = checkpoint.weights[EMBEDDING].dtype
    model = model_class.from_pretrained(None, config=config, state_dict=checkpoint.weights, dtype=dtype)
    if checkpoint.generation_config is not None:
        model.generation_config = checkpoint.generation_config
    return model


def _write_folder(model: PreTrainedModel, checkpoint: Checkpoint, folder: Path):
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as beside:
        model.save_pretrained(beside)
        if not isinstance(model.config, MiniMindConfig):
            add_server_keys(Path(beside) / "config.json")
        for file in checkpoint.tokenizer_files:
            shutil.copyfile(file, Path(beside) / file.name)
        folder.mkdir(exist_ok=True)
        for pattern in (*_STALE_WEIGHTS, *_FORMER_MODEL):
            for stale in folder.glob(pattern):
                stale.unlink()
        for file in Path(beside).iterdir():
            os.replace(file, folder / file.name)


# Arguments


def _resolve_target(to: str | None, destination: Path) -> str:
    if to is None:
        return "pth" if destination.suffix == ".pth" else "minimind"
    if to not in TARGETS:
        raise ConversionError(f"Unknown target {to!r}. Choose one of {', '.join(TARGETS)}.")
    if to == "pth" and destination.suffix != ".pth":
        raise ConversionError(f"The target is pth, but {destination} does not end in .pth. Name a .pth file.")
    if to != "pth" and destination.suffix == ".pth":
        raise ConversionError(f"The target {to} is a folder, but {destination} ends in .pth. Name a folder.")
    return to


def _check_destination(source: Path, destination: Path, to: str, overwrite: bool):
    if destination.exists() and source.exists() and destination.samefile(source):
        raise ConversionError(f"Source and destination are both {source}. Choose another destination.")
    if to == "pth":
        if destination.is_dir():
            raise ConversionError(f"{destination} is a folder. Name a .pth file.")
        taken = destination.exists()
    else:
        if destination.is_file():
            raise ConversionError(f"{destination} is a file. Name a folder.")
        taken = destination.is_dir() and any(destination.iterdir())
    if taken and not overwrite:
        raise ConversionError(
            f"{destination} already exists. Choose another destination, or replace it with --overwrite "
            "(overwrite=True)."
        )


def _tokenizer_files(folder: Path, required: bool) -> list[Path]:
    files = [folder / name for name in _TOKENIZER_FILES if (folder / name).is_file()]
    if required and not any(file.name.startswith("tokenizer") for file in files):
        raise ConversionError(f"{folder} has no tokenizer (none of {', '.join(_TOKENIZER_FILES)}). Give another one.")
    return files
