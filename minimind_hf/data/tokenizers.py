# SPDX-License-Identifier: Apache-2.0
"""What a tokenizer must have for training."""

from collections.abc import Collection

from jinja2 import TemplateError
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


def turn_end(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The special token that the chat template puts after an answer, if there is one.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): A tokenizer.
    """
    if not tokenizer.chat_template:
        return None
    answer = "An answer."
    turns = [{"role": "user", "content": "A question."}, {"role": "assistant", "content": answer}]
    try:
        text = tokenizer.apply_chat_template(turns, tokenize=False)
    except (TemplateError, TypeError, ValueError):  # a template that wants more than these turns says so at a row
        return None
    if answer not in text:
        return None
    rest = tokenizer(text.rpartition(answer)[2].lstrip(), add_special_tokens=False)["input_ids"]
    special = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
    return tokenizer.convert_ids_to_tokens(rest[0]) if rest and rest[0] in special else None


def say_turn_end(tokenizer: PreTrainedTokenizerBase, ends: Collection[int], conversational: bool) -> None:
    """Warns, once per process, if answers end with a token that does not end a completion.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The policy's tokenizer.
        ends (`Collection[int]`): Ids that end a completion.
        conversational (`bool`): Whether the prompts are messages.
    """
    end = turn_end(tokenizer) if conversational else None
    if end is not None and tokenizer.convert_tokens_to_ids(end) not in ends:
        logger.warning_once(
            f"The chat template ends answers with {end!r}, but completions end with "
            f"{tokenizer.convert_ids_to_tokens(sorted(ends))} alone, so the model goes on after its answer. Add its "
            f"id, {tokenizer.convert_tokens_to_ids(end)}, to model.generation_config.eos_token_id, or set "
            f"tokenizer.eos_token = {end!r}."
        )
