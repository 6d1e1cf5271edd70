# SPDX-License-Identifier: Apache-2.0
"""RoPE whose frequencies depend on the length of what is computed: a token is then sampled and scored differently."""

from torch import nn
from transformers.utils import logging

from ...forward.introspection import unwrap
from ..settings.base import RLConfig

logger = logging.get_logger(__name__)

LENGTH_DEPENDENT = ("dynamic", "longrope")


def changing_rope(model: nn.Module) -> tuple[str, int] | None:
    """Returns the type of a RoPE whose frequencies change with the length, and the length from which they do."""
    config = unwrap(model).config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = rope.values() if all(isinstance(value, dict) for value in rope.values()) else [rope]  # by kind of layer
    for each in kinds:
        if each.get("rope_type") in LENGTH_DEPENDENT:
            own = getattr(config, "original_max_position_embeddings", None) or config.max_position_embeddings
            return each["rope_type"], each.get("original_max_position_embeddings") or own
    return None


def say_that_lengths_change_rope(model: nn.Module, args: RLConfig) -> None:
    """Says before the first step if completions can grow beyond the length from which frequencies change."""
    found = changing_rope(model)
    if found is None:
        return
    kind, original = found
    if args.max_prompt_length is not None and args.max_prompt_length + args.max_completion_length <= original:
        return
    logger.warning(
        "The RoPE of %s is of type %r: beyond %d tokens all its frequencies change. max_prompt_length (%s) and "
        "max_completion_length (%d) allow longer sequences, whose first tokens are sampled with other frequencies "
        "than they are scored with, as are shorter sequences in the same micro-batch. Set both so that their sum is "
        "at most %d.",
        type(unwrap(model)).__name__,
        kind,
        original,
        args.max_prompt_length,
        args.max_completion_length,
        original,
    )
