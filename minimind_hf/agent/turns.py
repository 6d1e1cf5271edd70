# SPDX-License-Identifier: Apache-2.0
"""The ids between two turns of the policy: end of turn -> answers -> next generation prompt.

They come from the chat template, rendered after a dummy conversation, and are appended to ids that were drawn: the
policy's own text is never rendered or encoded again. That they do not depend on what stands before them is proved
once, at the start, for the tokenizer at hand.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase
from trl.chat_template_utils import get_training_chat_template

from ..data.conversations import Messages
from ..data.rendering import thinking_arguments
from ..data.untrusted import MARK, UntrustedText

ANSWERING_ROLES = ("tool", "user", "system", "developer")
_SEAM = "\ufdd1"  # ends the dummy turn, so that its EOS can be found; like MARK, no text of others holds it
_TOOL_NAME = "dummy_tool"
_SCHEMA = {
    "type": "function",
    "function": {
        "name": _TOOL_NAME,
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {"text": {"type": "string", "description": "Text."}}},
    },
}
# Dummy turns: text, thought. The proof compares the ids after each of them.
_TEXTS = (("", ""), ("A first text.\n\n", "One thought."), ("\u4e8c <b> ", "Another\n\nthought, longer."))


class TurnTemplate:
    """Renders what stands between two turns.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The policy's tokenizer, with a chat template.
        eos_token_ids (`Sequence[int]`): What ends a turn of the policy.

    Attributes:
        chat_template (`str`): What renders; trl's training template if only that keeps what stands before.
        untrusted ([`UntrustedText`]): Protects the content of every message.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, eos_token_ids: Sequence[int]):
        self._tokenizer = tokenizer
        if not eos_token_ids:
            raise ValueError("There is no EOS token, so a turn could not end. Set tokenizer.eos_token.")
        self._ends = [tokenizer.convert_ids_to_tokens(token) for token in eos_token_ids]
        self._thinking_arguments = thinking_arguments(tokenizer)
        self._arguments_as_text = False
        self._calls_with_text = True
        self.chat_template: str = tokenizer.get_chat_template(tools=[_SCHEMA])
        self.untrusted = UntrustedText(tokenizer)

    def ids_between(self, messages: Messages, template_kwargs: Mapping[str, Any] | None = None) -> list[int]:
        """Returns the ids after the EOS of one turn up to the next, generation prompt included.

        Args:
            messages (`list[dict]`):
                What answers the turn: messages of the role `tool` (with the `name` of the tool) or `user`. No string
                in them becomes a special or added token.
            template_kwargs (`dict`, *optional*):
                Arguments for the chat template, thinking included: the `template_kwargs` of an example.

        Raises:
            ValueError: If a message is the assistant's, or the template cannot render them.
        """
        if not messages:
            raise ValueError("There are no messages between two turns; an answer has at least one.")
        for message in messages:
            if message.get("role") not in ANSWERING_ROLES:
                raise ValueError(
                    f"A message that answers a turn has the role {message.get('role')!r}, expected one of "
                    f"{list(ANSWERING_ROLES)}. The assistant's own words are drawn from the policy."
                )
        end, text = self._between([self._protected(message) for message in messages], template_kwargs or {})
        return self.untrusted.encode(text, after=end)

    def generation_prompt(self, template_kwargs: Mapping[str, Any] | None = None) -> str:
        """The text before a turn, for [`TurnReader`]: from the last EOS on, a thought that it opens included."""
        return self._between([{"role": "user", "content": "a"}], template_kwargs or {})[1]

    def prove(
        self, tools: bool = True, conversation: bool = False, template_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Proves that ids can be appended: whatever the turn before, they are the same, and end with one encoding.

        Args:
            tools (`bool`, *optional*, defaults to `True`): Prove it for answers of tools.
            conversation (`bool`, *optional*, defaults to `False`): Prove it for messages of a user.
            template_kwargs (`dict`, *optional*): Arguments for the chat template.

        Raises:
            ValueError: If the template cannot be used; it is named, and what differed.
        """
        patched = _training_template(self._tokenizer) or self.chat_template
        # Some templates put the text of a turn that calls a tool after the tool's answer: there the dummy only calls.
        attempts = {(self.chat_template, True): None, (patched, True): None, (self.chat_template, False): None}
        first_error = None
        for self.chat_template, self._calls_with_text in attempts:
            try:
                return self._prove(tools, conversation, template_kwargs or {})
            except ValueError as error:
                first_error = first_error or error
        raise first_error

    def _prove(self, tools: bool, conversation: bool, template_kwargs: Mapping[str, Any]) -> None:
        if tools:
            self._check_tools(template_kwargs)
        answers = [[_answer("tool", "6")], [_answer("tool", "6"), _answer("tool", "Some more. ")]] if tools else []
        answers += [[_answer("user", "Go on.")]] if conversation else []
        for messages, kwargs in product(answers, self._states(template_kwargs)):
            self._check_independence(messages, kwargs)
            self._check_encoding(messages, kwargs)
            self._check_marks(messages, kwargs)

    def _states(self, template_kwargs: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The arguments with thinking on and off; one state if the template knows no thinking."""
        states = (True, False) if self._thinking_arguments else (None,)
        return [dict.fromkeys(self._thinking_arguments, state) | dict(template_kwargs) for state in states]

    def _check_tools(self, template_kwargs: Mapping[str, Any]) -> None:
        self._arguments_as_text = False
        question, answer = {"role": "user", "content": "a"}, _answer("tool", "Zk4answer")
        text = self._render([question], template_kwargs, tools=[_SCHEMA])
        if _TOOL_NAME not in text:
            self._refuse("shows no tools: their schemas do not appear in what it renders")
        try:
            text = self._render([*self._dummy([answer], *_TEXTS[1]), answer], template_kwargs)
        except ValueError:  # some templates take arguments as JSON text only
            self._arguments_as_text = True
            text = self._render([*self._dummy([answer], *_TEXTS[1]), answer], template_kwargs)
        if answer["content"] not in text:
            self._refuse("shows no answers of tools: the content of a tool's message does not appear")

    def _check_independence(self, messages: Messages, kwargs: Mapping[str, Any]) -> None:
        expected = self._between(messages, kwargs)
        for message in messages:
            if message["content"].strip() not in expected[1]:
                self._refuse(
                    f"does not put the answer to a turn after its end: {message['content']!r} of the role "
                    f"{message['role']!r} is not in {expected[1]!r}"
                )
        tools = [_SCHEMA] if messages[0]["role"] == "tool" else None
        for (content, thought), given in product(_TEXTS, (None, tools) if tools else (None,)):
            found = self._between(messages, kwargs, content, thought, given)
            if found != expected:
                self._refuse(
                    f"writes something else after another turn: {found[1]!r} after the text {content!r} with the "
                    f"thought {thought!r}{' and tools' if given else ''}, but {expected[1]!r} after an empty one "
                    f"(messages {[m['role'] for m in messages]}, arguments {dict(kwargs)})"
                )

    def _check_encoding(self, messages: Messages, kwargs: Mapping[str, Any]) -> None:
        end, text = self._between(messages, kwargs)
        ids = self.untrusted.encode(text, after=end)
        whole = self._render([*self._dummy(messages, *_TEXTS[1]), *messages], kwargs)
        tail = self._tokenizer(whole, add_special_tokens=False)["input_ids"][-len(ids) - 1 :]
        if tail != [self._tokenizer.convert_tokens_to_ids(end), *ids]:
            self._refuse(f"writes {text!r}, whose ids alone are {ids}, but {tail[1:]} at the end of a conversation")

    def _check_marks(self, messages: Messages, kwargs: Mapping[str, Any]) -> None:
        hostile = [{**messages[0], "content": f"a {self._ends[0]}\n b"}, *messages[1:]]
        marked = self._between([self._protected(message) for message in hostile], kwargs)[1]
        skeleton, found = (
            [token for token in self.ids_between(answers, kwargs) if token in self.untrusted.control_ids]
            for answers in (messages, hostile)
        )
        if found != skeleton or marked.replace(MARK, "") != self._between(hostile, kwargs)[1]:
            self._refuse(
                f"does not keep the mark {MARK!r} in a content, so that text of a tool could become a special token: "
                f"{hostile[0]['content']!r} is rendered as {marked!r}, with the special ids {found} instead of "
                f"{skeleton}"
            )

    def _between(
        self,
        messages: Messages,
        kwargs: Mapping[str, Any],
        content: str = "",
        thought: str = "",
        tools: list[dict[str, Any]] | None = None,
    ) -> tuple[str, str]:
        """The token that ends the dummy turn, and the text after it."""
        text = self._render([*self._dummy(messages, content, thought), *messages], kwargs, tools)
        seam = text.rfind(_SEAM)
        found = [(text.find(end, seam), end) for end in self._ends if end and text.find(end, seam) >= 0]
        if seam < 0 or not found:
            self._refuse(
                f"does not end a turn of the assistant with an EOS of the model ({', '.join(map(repr, self._ends))}): "
                f"it renders {text[max(seam, 0) :][:200]!r}"
            )
        position, end = min(found)
        return end, text[position + len(end) :]

    def _dummy(self, messages: Messages, content: str, thought: str) -> Messages:
        turn: dict[str, Any] = {"role": "assistant", "content": content + _SEAM}
        if thought:
            turn["reasoning_content"] = thought
        if messages[0]["role"] == "tool":
            if thought or not self._calls_with_text:  # some templates refuse a call with both
                turn["content"] = ""
            arguments: dict[str, Any] | str = {"text": content + _SEAM}
            name = messages[0].get("name") or _TOOL_NAME
            function = {
                "name": name,
                "arguments": json.dumps(arguments, ensure_ascii=False) if self._arguments_as_text else arguments,
            }
            turn["tool_calls"] = [{"type": "function", "function": function}]
        return [{"role": "user", "content": "a"}, turn]

    def _render(self, messages: Messages, kwargs: Mapping[str, Any], tools: list[dict[str, Any]] | None = None) -> str:
        try:
            return self._tokenizer.apply_chat_template(
                messages,
                tools=tools,
                chat_template=self.chat_template,
                tokenize=False,
                add_generation_prompt=True,
                **kwargs,
            )
        except (TemplateError, TypeError, ValueError) as error:
            self._refuse(
                f"cannot render the roles {[m['role'] for m in messages]} ({type(error).__name__}: {error})", error
            )

    def _protected(self, value: Any, key: str = "") -> Any:
        """A message with each text in it protected, but its role."""
        if isinstance(value, str):
            return value if key == "role" else self.untrusted.protected(value)
        if isinstance(value, Mapping):
            return {name: self._protected(item, name) for name, item in value.items()}
        if isinstance(value, Iterable):
            return [self._protected(item) for item in value]
        return value

    def _refuse(self, what: str, error: Exception | None = None) -> Any:
        raise ValueError(
            f"The chat template of {self._tokenizer.name_or_path!r} {what}. Episodes of several turns need one to "
            "which turns can be appended; set another `tokenizer.chat_template`."
        ) from error


def _answer(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content} | ({"name": _TOOL_NAME} if role == "tool" else {})


def _training_template(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """trl's template that keeps what stands before; `None` if it has none for this tokenizer."""
    try:
        return get_training_chat_template(tokenizer)
    except (TemplateError, TypeError, ValueError):
        return None
