# SPDX-License-Identifier: Apache-2.0
"""Properties of a causal LM: the arguments of its `forward`, its vocabulary, its context, its EOS ids.

Architectures differ in a few optional arguments (ALiBi models take no `position_ids`, older code calls its cache
`past_key_values`). Code that calls models of any architecture checks here first.
"""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from transformers import PreTrainedTokenizerBase

# The settings of a config on which the shapes of the weights depend, besides the vocabulary.
SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "num_experts",
)


def unwrap(model: nn.Module) -> nn.Module:
    """Returns the transformers model inside wrappers (DDP, DeepSpeed engine, peft)."""
    while hasattr(model, "module"):
        model = model.module
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def forward_arguments(model: nn.Module) -> frozenset[str]:
    """Returns the names of the arguments that the model's `forward` declares."""
    # Inspect the class, not the instance: accelerate replaces the instance's `forward` by an autocast wrapper.
    return frozenset(inspect.signature(type(unwrap(model)).forward).parameters)


def differing(own: Mapping[str, Any], other: Mapping[str, Any], names: Iterable[str] = SIZES) -> list[str]:
    """Returns the settings that two configs both name, with other values."""
    return [name for name in names if other.get(name) is not None and own.get(name) not in (None, other[name])]


def refuse_learned_prompts(model: nn.Module) -> None:
    """Refuses peft adapters that are prompts or prefixes.

    peft puts them in front of every input, each decoded token included, and drops the position ids, so that a prompt
    that is padded on the left gets other log-probabilities than the same prompt alone.

    Raises:
        ValueError: With the kind of the adapter and what to use instead.
    """
    for name, config in getattr(model, "peft_config", {}).items():
        if config.is_prompt_learning:
            raise ValueError(
                f"The adapter {name!r} is a prompt (peft_type={config.peft_type.value}), whose log-probabilities "
                "depend on how a batch is padded, so it can neither be sampled from nor trained here. Use adapters "
                "that change weights: LoraConfig, say."
            )


def cache_argument(model: nn.Module) -> str:
    """Returns the name under which `forward` takes the key/value cache (`cache`, formerly `past_key_values`).

    Raises:
        ValueError: If the model takes no cache at all.
    """
    accepted = forward_arguments(model)
    for name in ("cache", "past_key_values"):
        if name in accepted:
            return name
    raise ValueError(
        f"{type(unwrap(model)).__name__}.forward takes neither `cache` nor `past_key_values`, so the torch rollout "
        "engine cannot decode with it token by token. Pass a custom rollout engine as `rollout_engine`."
    )


def vocabulary_size(model: nn.Module) -> int:
    """Returns the number of token ids that the model embeds, even if adapters wrap its embeddings."""
    return unwrap(model).config.get_text_config().vocab_size


def quantisation(model: nn.Module) -> str | None:
    """Returns how a model's weights are quantised, such as "bitsandbytes in 4 bits"; `None` if they are not."""
    settings = getattr(unwrap(model).config, "quantization_config", None)
    if settings is None:
        return None
    settings = settings if isinstance(settings, dict) else settings.to_dict()
    method = settings.get("quant_method", "an unknown method")
    bits = [bits for bits in (4, 8) if settings.get(f"load_in_{bits}bit")]
    return " in ".join([str(getattr(method, "value", method)), *(f"{each} bits" for each in bits)])


def sliding_windows(model: nn.Module) -> list[int | None] | None:
    """Returns the sliding window of each layer, `None` for full attention.

    `None` instead of a list: some layer is neither, so that other things than windows decide what its tokens see.
    """
    config = unwrap(model).config.get_text_config()
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return [window or None] * getattr(config, "num_hidden_layers", 0)
    if not set(kinds) <= {"full_attention", "sliding_attention"}:
        return None
    return [(window or None) if kind == "sliding_attention" else None for kind in kinds]


def context_length(model: nn.Module) -> int | None:
    """Returns the maximum context length of the model in tokens; `None` if its positions are unlimited."""
    declared = getattr(unwrap(model).config.get_text_config(), "max_position_embeddings", None)
    return declared if declared is not None and declared > 0 else None  # XLNet's -1


def declared_eos_ids(model: nn.Module) -> tuple[int, ...]:
    """Returns the ids that end a completion by the model's generation config; none if it has no such config."""
    declared = getattr(getattr(unwrap(model), "generation_config", None), "eos_token_id", None)
    return (declared,) if isinstance(declared, int) else tuple(declared or ())


def unspoken_ids(tokenizer: PreTrainedTokenizerBase, ends: Iterable[int] = ()) -> frozenset[int]:
    """Returns the ids that are no part of a completion's text: BOS, EOS and PAD.

    Other special tokens are text: the tags of a thought or of a tool call are special in some vocabularies.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): Of the model.
        ends (`Iterable[int]`): Further ids that end a completion, such as those of the generation config.
    """
    return frozenset({*ends, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id} - {None})


def eos_token_ids(model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Returns every id that ends a completion, from the generation config and the tokenizer.

    Raises:
        ValueError: If there is none.
    """
    ids = {*declared_eos_ids(model), tokenizer.eos_token_id} - {None}
    if not ids:
        raise ValueError(
            "Neither the model's generation config nor the tokenizer has an EOS token, so completions could not end. "
            "Set tokenizer.eos_token or model.generation_config.eos_token_id."
        )
    return tuple(sorted(ids))
