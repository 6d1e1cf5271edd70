# SPDX-License-Identifier: Apache-2.0
"""Prompt data: reading, checking, rendering and tokenizing."""

from .prompts import (
    DEFAULT_SYSTEM_PROMPTS,
    PromptChoices,
    PromptDataset,
    PromptError,
    check_tokenizer,
    load_prompts,
    prompt_choices,
)

__all__ = [
    "DEFAULT_SYSTEM_PROMPTS",
    "PromptChoices",
    "PromptDataset",
    "PromptError",
    "check_tokenizer",
    "load_prompts",
    "prompt_choices",
]
