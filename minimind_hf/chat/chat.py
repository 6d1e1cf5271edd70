# SPDX-License-Identifier: Apache-2.0
"""A conversation with a trained model, streamed to a console."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from jinja2 import TemplateError
from rich.console import Console
from rich.text import Text
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed

from ..forward.generation_settings import decode_by_arguments
from ..forward.introspection import declared_eos_ids, unspoken_ids
from ..inference import Piece, opens_thought
from .settings import HELP, NO_SWITCH, SAMPLING, ChatSettings
from .streaming import PieceStreamer
from .tools import ChatTools


class Chat:
    """A conversation with a model.

    Args:
        model (`PreTrainedModel`), tokenizer (`PreTrainedTokenizerBase`): The model that answers.
        settings ([`ChatSettings`]): Settings of the answers.
        system (`str`, *optional*): System prompt.
        console (`rich.console.Console`, *optional*): Console for the answers.
        tools ([`ChatTools`], *optional*): What the model may call.

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
        tools: ChatTools | None = None,
    ):
        if not tokenizer.chat_template:
            raise ValueError(
                f"The tokenizer {tokenizer.name_or_path!r} has no chat template to render a conversation. "
                "Use the folder of an instruction-tuned model, or set tokenizer.chat_template."
            )
        self.model, self.tokenizer = model, tokenizer
        self.ignored = decode_by_arguments(model, set(settings.generate_kwargs()) | SAMPLING)
        self.settings = settings
        self.console = console or Console(highlight=False)
        self.tools = tools
        self._system = [{"role": "system", "content": system}] if system else []
        self.messages: list[dict[str, Any]] = list(self._system)

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

    def say(self, text: str) -> str:
        """Adds a user turn, streams the answer and the calls in it, and returns its last text without the thought."""
        self.messages.append({"role": "user", "content": text})
        prompt = self.render()
        if self.tools is not None:
            return self._say_with(self.tools, prompt)
        pieces = self._streamed(self.tokenizer(prompt, add_special_tokens=False)["input_ids"], prompt)[1]
        answer, thought = (
            "".join(piece.text for piece in pieces if piece.is_thought == wanted).strip() for wanted in (False, True)
        )
        turn = {"role": "assistant", "content": answer}
        self.messages.append(turn | {"reasoning_content": thought} if thought else turn)
        return answer

    def _say_with(self, tools: ChatTools, prompt: str) -> str:
        """Takes turns, each answered by what its calls return, until one has no call."""
        ids, before = tools.encode(prompt), prompt
        episode = tools.begin(ids, self._switch(self.settings.thinking), self.console)
        while True:
            turn, _ = self._streamed(ids, before)
            is_whole = bool(turn) and turn[-1] in tools.eos_token_ids
            between = episode.observe(turn, "stop" if is_whole else "length")
            if between is None:
                break
            ids, before = ids + turn + between, self.tokenizer.decode(between)
        self.messages += episode.messages
        if episode.reached_max_turns:
            self.console.print(f"stopped after {episode.num_turns} turns (--max_turns), with a call to come")
        return episode.messages[-1]["content"]

    def _streamed(self, ids: list[int], before: str) -> tuple[list[int], list[Piece]]:
        """Shows what the model says after these ids, whose text ends with `before`; returns its ids and its text."""
        pieces: list[Piece] = []

        def show(piece: Piece) -> None:
            pieces.append(piece)
            if self.settings.show_thinking or not piece.is_thought:
                self.console.print(Text(piece.text, style="dim italic" if piece.is_thought else ""), end="")

        inputs = torch.tensor([ids], dtype=torch.long, device=self.model.device)
        self._check_ids(inputs)
        unspoken = unspoken_ids(self.tokenizer, declared_eos_ids(self.model))
        streamer = PieceStreamer(self.tokenizer, show, opens_thought(before), unspoken)
        self.model.generate(
            input_ids=inputs,
            attention_mask=torch.ones_like(inputs),
            streamer=streamer,
            **self.settings.generate_kwargs(),
        )
        self.console.print()
        return streamer.ids, pieces

    def _rendered(self, messages: list[dict[str, Any]], thinking: bool) -> str:
        schemas = None
        if self.tools is not None:
            schemas, messages = self.tools.toolbox.schemas, self.tools.marked(messages)
        try:
            return self.tokenizer.apply_chat_template(
                messages, tools=schemas, tokenize=False, add_generation_prompt=True, **self._switch(thinking)
            )
        except (TemplateError, TypeError, KeyError) as error:
            raise ValueError(
                f"The chat template of {self.tokenizer.name_or_path!r} cannot render the conversation "
                f"({type(error).__name__}: {error}). Correct its chat_template."
            ) from error

    @staticmethod
    def _switch(thinking: bool) -> dict[str, bool]:
        return {"open_thinking": thinking, "enable_thinking": thinking}

    def _check_ids(self, ids: Tensor) -> None:
        if not isinstance(self.model, nn.Module):
            return
        embedded = self.model.get_input_embeddings().num_embeddings
        if ids.numel() and int(ids.max()) >= embedded:
            raise ValueError(
                f"The tokenizer {self.tokenizer.name_or_path!r} gave the token id {int(ids.max())}, but the model "
                f"embeds {embedded} tokens. Use the model's own tokenizer."
            )


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
