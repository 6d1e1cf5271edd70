# SPDX-License-Identifier: Apache-2.0
"""Prepares what a trainer was given: its settings, tokenizer, order of prompts, rollout engine, output folder."""

import copy
import sys
from pathlib import Path
from typing import Any

from peft import PeftConfig
from torch import nn
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.quantization_config import QuantizationConfigMixin

from ...data import PromptDataset
from ...data.streams import PromptStream
from ...paths import check_loadable, check_tokenizer_files
from ...rollout import RolloutEngine, SGLangEngine, TorchEngine
from ..settings.base import RLConfig
from ..settings.engines import check_own_engine
from .sampler import RolloutSampler, StreamSampler


def check_config_class(args: Any, expected: type[RLConfig]) -> None:
    """Refuses the settings of another trainer, including trl's.

    Raises:
        ValueError: Naming both classes.
    """
    if not isinstance(args, expected):
        found = f"{type(args).__module__.split('.')[0]}.{type(args).__name__}"
        raise ValueError(
            f"args is a {found}, but this trainer takes a minimind_hf.{expected.__name__}. Import it from "
            "minimind_hf: it has trl's fields."
        )


def check_objects(model: Any, processing_class: Any, peft_config: Any) -> None:
    """Refuses arguments of the wrong type.

    Raises:
        TypeError: Naming the argument, its type and what is expected.
    """
    expected = {
        "model": (model, (str, nn.Module), "a name or folder (a str), or a model"),
        "processing_class": (processing_class, (PreTrainedTokenizerBase, type(None)), "a tokenizer of transformers"),
        "peft_config": (peft_config, (PeftConfig, type(None)), "a configuration of peft, such as LoraConfig(r=16)"),
    }
    for name, (value, kinds, wanted) in expected.items():
        if not isinstance(value, kinds):
            found = f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
            raise TypeError(f"{name} is {found}, expected {wanted}.")


def with_quantization(
    model: str | PreTrainedModel, args: RLConfig, quantization_config: QuantizationConfigMixin | None
) -> RLConfig:
    """Moves trl's argument `quantization_config` into `model_init_kwargs`.

    Raises:
        ValueError: If the model is loaded already, or `model_init_kwargs` holds one too.
    """
    if quantization_config is None:
        return args
    init_kwargs = args.model_init_kwargs or {}
    if not isinstance(model, str) or "quantization_config" in init_kwargs:
        fault = "the model is loaded already" if not isinstance(model, str) else "model_init_kwargs holds one too"
        raise ValueError(f"quantization_config was given, but {fault}. Pass it once, where the model is loaded.")
    return replace_settings(args, model_init_kwargs={**init_kwargs, "quantization_config": quantization_config})


def replace_settings(args: RLConfig, **changes: Any) -> RLConfig:
    """Returns a shallow copy with changed values, which are not checked again."""
    changed = copy.copy(args)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed


def make_sampler(
    prompts: PromptDataset | PromptStream | None, args: RLConfig
) -> RolloutSampler | StreamSampler | None:
    """Returns the sampler that sets the order of the prompts.

    Raises:
        ValueError: If the prompts do not fill one rollout.
    """
    if prompts is None:
        return None
    chunk_size, repeats = args.prompts_per_rollout * args.world_size, args.micro_batches_per_rollout
    if isinstance(prompts, PromptStream):
        return StreamSampler(chunk_size, repeats)
    return RolloutSampler(len(prompts), chunk_size, repeats, args.shuffle_dataset, args.seed)


def prompt_numbers(prompts: PromptDataset | PromptStream) -> range:
    """All numbers that a sampler may draw."""
    return range(sys.maxsize if isinstance(prompts, PromptStream) else len(prompts))


def default_output_dir(model: str | PreTrainedModel, trainer: str) -> str:
    name = model if isinstance(model, str) else model.config._name_or_path or type(model).__name__
    return f"{Path(name).name}-{trainer.removesuffix('Trainer')}"


def load_tokenizer(model: str | PreTrainedModel, args: RLConfig) -> PreTrainedTokenizerBase:
    name = model if isinstance(model, str) else model.config._name_or_path
    if not name:
        raise ValueError(
            "The model was created in memory, so there is no folder to load a tokenizer from. Pass processing_class."
        )
    check_loadable(name)
    check_tokenizer_files(name)
    revision = (args.model_init_kwargs or {}).get("revision")
    tokenizer = AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=args.trust_remote_code)
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token  # harmless: padding never decides where a completion ends
    return tokenizer


def make_engine(args: RLConfig, own: RolloutEngine | None = None) -> RolloutEngine:
    """Returns the engine that was passed, or the one named in `args`.

    Raises:
        ValueError: If the engine would ignore settings.
    """
    if own is not None:
        check_own_engine(args, own)
        return own
    if args.rollout_engine == "sglang":
        return SGLangEngine(
            args.sglang_base_url,
            weight_sync=args.rollout_weight_sync,
            sync_folder=args.rollout_sync_dir or Path(args.output_dir) / "_rollout_weights",
            server_timeout=args.server_timeout,
            keeps_sent=args.sync_every > 1,
            sleeps=args.sglang_enable_sleep_mode,
        )
    dtype = args.rollout_dtype or ("bfloat16" if args.bf16 else None)
    return TorchEngine(args.max_batch_rows, dtype, args.torch_engine_path, args.verify_fast_paths, args.speculation)
