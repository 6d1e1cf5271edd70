# SPDX-License-Identifier: Apache-2.0
"""What a tokenizer must have for training."""

from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from .conversations import PromptError

logger = logging.get_logger(__name__)


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, conversational: bool) -> None:
    """Refuses a tokenizer that training cannot work with.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The policy's tokenizer.
        conversational (`bool`): Whether the prompts are messages, which need a chat template.

    Raises:
        PromptError: If conversational prompts have no chat template, or there is no pad token.
    """
    name = f"{type(tokenizer).__name__} {tokenizer.name_or_path!r}"
    if conversational and not tokenizer.chat_template:
        raise PromptError(
            f"The prompts are lists of messages, but the tokenizer {name} has no chat template to render them with. "
            "Set `tokenizer.chat_template` (a Jinja template), use the tokenizer of the model's instruct version, or "
            "give prompts that are strings."
        )
    if tokenizer.pad_token_id is None:
        eos = tokenizer.eos_token
        raise PromptError(
            f"The tokenizer {name} has no pad token (pad_token is None, eos_token is {eos!r}), so sequences of "
            "different lengths cannot be batched. Set one, for example `tokenizer.pad_token = tokenizer.eos_token`."
        )


def say_plain_prompts(tokenizer: PreTrainedTokenizerBase, conversational: bool) -> None:
    """Warns, once per process, if prompts are plain strings although the model has a chat template."""
    if not conversational and tokenizer.chat_template:
        logger.warning_once(
            f"The prompts are plain strings, but the tokenizer {tokenizer.name_or_path!r} has a chat template, which "
            "does not apply to them: the model continues the text and is not asked as in a chat. For that, give "
            'messages: [{"role": "user", "content": ...}].'
        )
