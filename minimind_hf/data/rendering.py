# SPDX-License-Identifier: Apache-2.0
"""From a parsed prompt to text and ids: the chat template, its arguments, and what is encoded how."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from .conversations import Messages, ParsedPrompt, PromptError, check_template_kwargs
from .untrusted import MARK, UntrustedText

_THINKING_ARGUMENTS = ("open_thinking", "enable_thinking")


class PromptRenderer:
    """Renders and encodes prompts with a tokenizer.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The policy's tokenizer.
        conversational (`bool`): Whether the prompts are lists of messages.
        template_kwargs (`dict`, *optional*): Arguments for the chat template, which override the choice of thinking.

    Attributes:
        thinking_arguments (`tuple[str, ...]`): The arguments of the template that turn thinking on and off.

    Raises:
        PromptError: If the arguments are none of a template.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, conversational: bool, template_kwargs: Any = None):
        self.tokenizer = tokenizer
        self.conversational = conversational
        self.template_kwargs = check_template_kwargs(template_kwargs, "chat_template_kwargs")
        self.thinking_arguments = thinking_arguments(tokenizer) if conversational else ()
        self._untrusted: UntrustedText | None = None

    def arguments(self, thinking: bool, own: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that the template gets: the choice of thinking, under those of all rows, under a row's own."""
        return dict.fromkeys(self.thinking_arguments, thinking) | self.template_kwargs | dict(own)

    def render(self, parsed: ParsedPrompt, arguments: Mapping[str, Any], where: str) -> str:
        """Renders a prompt.

        Args:
            parsed ([`ParsedPrompt`]): The prompt and its tools.
            arguments (`dict`): See `arguments`.
            where (`str`): Place of the row, for error messages.

        Raises:
            PromptError: If the template cannot render the conversation.
        """
        if not parsed.conversational:
            return parsed.prompt
        try:
            return self.tokenizer.apply_chat_template(
                parsed.prompt,
                tools=parsed.tools,
                tokenize=False,
                add_generation_prompt=not parsed.continues_assistant,
                continue_final_message=parsed.continues_assistant,
                **arguments,
            )
        except (TemplateError, TypeError, ValueError) as error:
            roles = [message["role"] for message in parsed.prompt]
            raise PromptError(
                f"{where}: the chat template of {self.tokenizer.name_or_path!r} cannot render this conversation "
                f"with the roles {roles} ({type(error).__name__}: {error}). Correct or remove the row, or set another "
                "`tokenizer.chat_template`."
            ) from error

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Encodes rendered prompts."""
        if self.conversational:
            # A chat template writes the special tokens itself.
            return self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return [self._encode_plain(text) for text in texts]

    def extended(self, example: Mapping[str, Any], appended: str | Messages) -> tuple[str | Messages, list[int]]:
        """Appends what an environment says to a prompt, none of which becomes an added token.

        Args:
            example (`dict`): An example of `PromptDataset`, whose choices stay.
            appended (`str` or `list[dict]`):
                A text goes after the last message if that is the user's, else it is a new one of the user. Messages
                follow the last one, or replace it if it is the user's and empty.

        Returns:
            `tuple`: The prompt with the text, and its ids.
        """
        self._untrusted = self._untrusted or UntrustedText(self.tokenizer)
        marked = _each_text(appended, self._untrusted.protected)
        parsed = ParsedPrompt(_appended(example["prompt"], marked), example["tools"], {})
        text = self.render(parsed, example["template_kwargs"], f"row {example['index']}")
        first, *others = text.split(MARK)
        ids = self.encode([first])[0] + self._untrusted.encode_pieces(others)
        return _appended(example["prompt"], _each_text(marked, lambda text: text.replace(MARK, ""))), ids

    def _encode_plain(self, text: str) -> list[int]:
        """Ids of a string prompt: one BOS if the tokenizer uses it, and no EOS, because the policy continues it."""
        bos, eos = self.tokenizer.bos_token, self.tokenizer.eos_token
        ids = self.tokenizer(text, add_special_tokens=not (bos and text.startswith(bos)))["input_ids"]
        if eos and ids and ids[-1] == self.tokenizer.eos_token_id and not text.rstrip().endswith(eos):
            ids = ids[:-1]
        return ids


def thinking_arguments(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """The arguments of a tokenizer's chat template that turn thinking on and off."""
    template = tokenizer.chat_template or ""
    text = "\n".join(template.values()) if isinstance(template, dict) else template
    return tuple(name for name in _THINKING_ARGUMENTS if re.search(rf"\b{name}\b", text))


def _each_text(appended: str | Messages, change: Callable[[str], str]) -> str | Messages:
    """The same with each text of it changed."""
    if isinstance(appended, str):
        return change(appended)
    return [{**message, "content": change(message["content"])} for message in appended]


def _appended(prompt: str | Messages, text: str | Messages) -> str | Messages:
    if isinstance(prompt, str):
        if not isinstance(text, str):
            raise PromptError(f"The prompt {prompt!r:.80} is a string, to which no messages can be appended.")
        return prompt + text
    if not isinstance(text, str):
        is_empty = prompt[-1]["role"] == "user" and not prompt[-1]["content"]
        return [*(prompt[:-1] if is_empty else prompt), *text]
    if prompt[-1]["role"] != "user":
        return [*prompt, {"role": "user", "content": text}]
    return [*prompt[:-1], {**prompt[-1], "content": prompt[-1]["content"] + text}]
