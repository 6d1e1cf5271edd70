# SPDX-License-Identifier: Apache-2.0
"""A conversation with a trained model, streamed to a console."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from rich.console import Console
from rich.text import Text
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TextStreamer, set_seed

from .bounds import Bounds, Count, Positive, Share, check_settings
from .flags import flag
from .forward.introspection import declared_eos_ids, unspoken_ids
from .inference import Piece, ThoughtSplitter, opens_thought

HELP = "/clear starts over, /think and /nothink switch thinking on and off, /exit (or end of file) ends the chat"
NO_SWITCH = "the chat template of this model has no switch for thinking: whether it thinks depends on its training"


_OFF = "(default %(default)s: off)"
_Temperature = Annotated[float, Bounds(at_least=0, remedy="0 always takes the most likely token.")]
_TopP = Annotated[float, Bounds(above=0, at_most=1, remedy="1 switches it off.")]


@dataclass(frozen=True)
class AnswerSettings:
    """Settings of the sampling; each one is an argument of `generate` and a flag of `minimind-hf chat`.

    Args:
        max_new_tokens (`int`): Maximum tokens per answer.
        temperature (`float`), top_p (`float`), top_k (`int`), min_p (`float`), repetition_penalty (`float`): As
            in transformers. A temperature of 0 takes the most likely token.

    Raises:
        ValueError: If a value is out of bounds.
    """

    max_new_tokens: Count = flag(512, "maximum tokens per answer (default %(default)s)", metavar="N")
    temperature: _Temperature = flag(0.8, "0: always the most likely token (default %(default)s)", metavar="T")
    top_p: _TopP = flag(1.0, f"nucleus sampling {_OFF}", metavar="P")
    top_k: Annotated[int, Bounds(at_least=0)] = flag(0, f"only the K most likely tokens {_OFF}", metavar="K")
    min_p: Share = flag(0.0, f"only tokens at least this likely, relative to the most likely one {_OFF}", metavar="P")
    repetition_penalty: Positive = flag(1.0, f"above 1: less repetition {_OFF}", metavar="X")

    def __post_init__(self):
        check_settings(self)

    def generate_kwargs(self) -> dict[str, Any]:
        """Arguments of `generate`."""
        kwargs: dict[str, Any] = {"max_new_tokens": self.max_new_tokens, "do_sample": self.temperature > 0}
        if self.temperature > 0:
            kwargs |= {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k, "min_p": self.min_p}
        return kwargs | {"repetition_penalty": self.repetition_penalty}


@dataclass(frozen=True)
class ChatSettings(AnswerSettings):
    """Settings of the answers and of their display.

    Args:
        thinking (`bool`): Whether the chat template opens a thought.
        show_thinking (`bool`): Whether thoughts are shown.
    """

    thinking: bool = False
    show_thinking: bool = True


class Chat:
    """A conversation with a model.

    Args:
        model (`PreTrainedModel`), tokenizer (`PreTrainedTokenizerBase`): The model that answers.
        settings ([`ChatSettings`]): Settings of the answers.
        system (`str`, *optional*): System prompt.
        console (`rich.console.Console`, *optional*): Console for the answers.

    Raises:
        ValueError: If the tokenizer has no chat template.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        settings: ChatSettings,
        system: str | None = None,
        console: Console | None = None,
    ):
        if not tokenizer.chat_template:
            raise ValueError(
                f"The tokenizer {tokenizer.name_or_path!r} has no chat template to render a conversation. "
                "Use the folder of an instruction-tuned model, or set tokenizer.chat_template."
            )
        self.model, self.tokenizer = model, tokenizer
        self.settings = settings
        self.console = console or Console(highlight=False)
        self._system = [{"role": "system", "content": system}] if system else []
        self.messages: list[dict[str, str]] = list(self._system)

    def clear(self) -> None:
        """Removes all turns except the system prompt."""
        self.messages = list(self._system)

    def render(self) -> str:
        """Returns the conversation as the model sees it, up to its next answer."""
        return self._rendered(self.messages, self.settings.thinking)

    def has_thinking_switch(self) -> bool:
        """Whether the chat template renders differently with thinking on and off."""
        turn = [*self._system, {"role": "user", "content": "?"}]
        return self._rendered(turn, True) != self._rendered(turn, False)

    def switch_thinking(self, on: bool) -> None:
        """Switches thinking on or off and reports it, or reports that the template has no switch."""
        self.settings = replace(self.settings, thinking=on)
        self.console.print(f"thinking is {'on' if on else 'off'}" if self.has_thinking_switch() else NO_SWITCH)

    def _rendered(self, messages: list[dict[str, str]], thinking: bool) -> str:
        switch = {"open_thinking": thinking, "enable_thinking": thinking}
        return self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **switch)

    def say(self, text: str) -> str:
        """Adds a user turn, streams the answer, and returns it without its thought."""
        self.messages.append({"role": "user", "content": text})
        prompt = self.render()
        pieces: list[Piece] = []

        def show(piece: Piece) -> None:
            pieces.append(piece)
            if self.settings.show_thinking or not piece.is_thought:
                self.console.print(Text(piece.text, style="dim italic" if piece.is_thought else ""), end="")

        inputs = self.tokenizer(prompt, add_special_tokens=False, return_tensors="pt").to(self.model.device)
        unspoken = unspoken_ids(self.tokenizer, declared_eos_ids(self.model))
        streamer = _PieceStreamer(self.tokenizer, show, opens_thought(prompt), unspoken)
        self.model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            streamer=streamer,
            **self.settings.generate_kwargs(),
        )
        self.console.print()
        answer, thought = (
            "".join(piece.text for piece in pieces if piece.is_thought == wanted).strip() for wanted in (False, True)
        )
        turn = {"role": "assistant", "content": answer}
        self.messages.append(turn | {"reasoning_content": thought} if thought else turn)
        return answer


class _PieceStreamer(TextStreamer):
    """Passes on text while it is decoded, split into thought and answer."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        show: Callable[[Piece], None],
        inside: bool,
        unspoken: frozenset[int],
    ):
        super().__init__(tokenizer, skip_prompt=True)
        self._show, self._unspoken = show, unspoken
        self._splitter = ThoughtSplitter(inside)

    def put(self, value: Tensor) -> None:
        if not self.next_tokens_are_prompt:
            # Not by `skip_special_tokens`, which leaves out tags that are special tokens too.
            value = torch.tensor([token for token in value.flatten().tolist() if token not in self._unspoken])
        if value.numel():
            super().put(value)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        pieces = list(self._splitter.feed(text))
        if stream_end:
            pieces += self._splitter.end()
        for piece in pieces:
            self._show(piece)


def converse(chat: Chat, lines: Iterable[str], seed: int | None = None) -> None:
    """Answers line by line, until the lines end or one is /exit.

    Args:
        chat ([`Chat`]): The conversation.
        lines (`Iterable[str]`): The user's lines, including commands.
        seed (`int`, *optional*): Makes sampled answers repeatable.
    """
    if seed is not None:
        set_seed(seed)
    for line in lines:
        text = line.strip()
        if text == "/exit":
            return
        if text == "/clear":
            chat.clear()
        elif text in ("/think", "/nothink"):
            chat.switch_thinking(text == "/think")
        elif text.startswith("/"):
            chat.console.print(f"{text.split()[0]} is not a command: {HELP}.", markup=False)
        elif text:
            chat.say(text)
