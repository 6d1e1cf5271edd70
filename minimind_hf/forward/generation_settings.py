# SPDX-License-Identifier: Apache-2.0
"""A model's `generation_config`: whether it can be saved again, and which of its settings decide how it decodes.

transformers saves a changed `generation_config` only if none of its settings is without effect, and refuses at the
save: after training. Special tokens are aligned with the tokenizer's in every run, which is such a change.
"""

import re

from torch import nn
from transformers import GenerationConfig, PreTrainedTokenizerBase
from transformers.trainer_utils import align_special_tokens
from transformers.utils import logging

from .introspection import unwrap

logger = logging.get_logger(__name__)

# What says which tokens there are and how a cache is kept, not what is drawn
_NOT_OF_DECODING = {
    "bos_token_id",
    "cache_implementation",
    "compile_config",
    "disable_compile",
    "eos_token_id",
    "max_cache_len",
    "pad_token_id",
    "return_dict_in_generate",
    "transformers_version",
    "use_cache",
}
_LIMITS = {"max_length", "max_new_tokens", "max_time"}


def make_generation_config_savable(model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> None:
    """Aligns the special tokens with the tokenizer's, and drops what transformers would refuse to save.

    Only settings without effect are dropped, such as a temperature without `do_sample`; `generate` ignored them. A
    config that nothing changes is saved as it was loaded.

    Args:
        model (`nn.Module`): With or without adapters. One that does not generate is left alone.
        tokenizer (`PreTrainedTokenizerBase`): That of the run.

    Raises:
        ValueError: If the config is wrong in a way that cannot be mended, with the cause.
    """
    base = unwrap(model)
    if getattr(base, "generation_config", None) is None:
        return
    align_special_tokens(base, tokenizer)
    dropped = _drop_what_has_no_effect(base.generation_config, base.config._name_or_path or type(base).__name__)
    if dropped:
        logger.warning(
            "The generation_config of %s sets %s, which have no effect without do_sample=True, num_beams above 1 or "
            "the like. transformers refuses to save that, so the model is saved without them. To keep them, correct "
            "generation_config.json (for sampling: do_sample true).",
            base.config._name_or_path or type(base).__name__,
            ", ".join(f"{name}={value!r}" for name, value in dropped.items()),
        )


def _drop_what_has_no_effect(config: GenerationConfig, name: str) -> dict[str, object]:
    """Resets settings until the config can be saved, and returns them with their values."""
    dropped: dict[str, object] = {}
    while (complaint := _complaint(config)) is not None:
        without_effect = set(re.findall(r"^- `(\w+)`: ", complaint, re.MULTILINE)) - set(dropped)
        if not without_effect:
            raise ValueError(
                f"The generation_config of {name} cannot be saved: {complaint.strip()} Correct its "
                "generation_config.json, or model.generation_config."
            )
        for setting in sorted(without_effect):
            dropped[setting] = getattr(config, setting)
            setattr(config, setting, getattr(GenerationConfig(), setting))
    return dropped


def _complaint(config: GenerationConfig) -> str | None:
    """What `save_pretrained` would refuse the config for."""
    was_changed = getattr(config, "_original_object_hash", None) != hash(config)
    try:
        config.validate(strict=was_changed)
    except ValueError as error:
        return str(error)
    return None


def decode_by_arguments(model: nn.Module, given: set[str]) -> dict[str, object]:
    """Has `generate` decode by its arguments alone: settings that the model's folder brings are switched off.

    Args:
        model (`nn.Module`): Gets another `generation_config`, with the same special tokens.
        given (`set[str]`): Arguments that every call of `generate` sets.

    Returns:
        `dict[str, object]`: The settings that no longer apply and that no argument sets, with their values.
    """
    base = unwrap(model)
    inherited = base.generation_config.to_diff_dict()
    inherited = {name: value for name, value in inherited.items() if not name.startswith(("_", "output_"))}
    kept = {name: value for name, value in inherited.items() if name in _NOT_OF_DECODING}
    base.generation_config = GenerationConfig(**kept)
    ignored = {*_NOT_OF_DECODING, *_LIMITS, "do_sample", *given}
    return {name: value for name, value in inherited.items() if name not in ignored}
