# SPDX-License-Identifier: Apache-2.0
"""From rows to token ids: prompts for reinforcement learning, and examples for the training that precedes it.

It imports `tasks`, the answer rules of `rewards` and libraries, and knows no trainer. A new source of rows belongs in
`loading`, a new format of a row in `conversations`, a random choice in `choices`, how prompts are rendered in
`rendering`, cut or dropped in `prompts`, text of others in `untrusted`, and an example for sft, dpo or a reward model
in `supervised`.
"""

from .choices import DEFAULT_SYSTEM_PROMPTS, PromptChoices, prompt_choices
from .conversations import PromptError
from .loading import load_prompts
from .prompts import PromptDataset
from .tokenizers import check_tokenizer

__all__ = [
    "DEFAULT_SYSTEM_PROMPTS",
    "PromptChoices",
    "PromptDataset",
    "PromptError",
    "check_tokenizer",
    "load_prompts",
    "prompt_choices",
]
