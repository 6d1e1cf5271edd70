# SPDX-License-Identifier: Apache-2.0
"""The tools of a chat: they are really called, once the user has allowed each call, and every call is shown.

An answer of the model is an episode as in training: ids are appended and never encoded again, and what goes wrong in
a call is what the model reads next. So is a call that was not allowed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text
from transformers import PreTrainedTokenizerBase

from ..agent import Episode, Toolbox, TurnReader, TurnTemplate
from ..agent.episodes import EpisodeRules
from ..agent.workers import ToolRunner
from ..reports.episodes import call_text
from .settings import ToolSettings

REFUSAL = "the user did not allow this call."


class ChatTools:
    """What a model may call in a chat.

    Args:
        functions (`Sequence[Callable]`): Functions with type hints and a Google docstring.
        tokenizer (`PreTrainedTokenizerBase`): With a chat template that knows tools.
        eos_token_ids (`tuple[int, ...]`): What ends a turn of the model.
        settings ([`ToolSettings`]): Bounds of the calls.
        allow (`Callable[[str], bool]`): Asked before each call, with the call as text.

    Attributes:
        eos_token_ids (`tuple[int, ...]`): The same.
        toolbox ([`Toolbox`]): The functions.
        settings ([`ToolSettings`]): The same.

    Raises:
        ValueError: If the chat template cannot be used for calls.
    """

    def __init__(
        self,
        functions: Sequence[Callable],
        tokenizer: PreTrainedTokenizerBase,
        eos_token_ids: tuple[int, ...],
        settings: ToolSettings,
        allow: Callable[[str], bool],
    ):
        self.toolbox, self.settings, self.eos_token_ids = Toolbox(functions), settings, eos_token_ids
        self._allow, self._template = allow, TurnTemplate(tokenizer, eos_token_ids)
        self._template.prove(tools=True)
        self._rules = EpisodeRules(
            tokenizer,
            TurnReader(tokenizer, eos_token_ids),
            self._template,
            ToolRunner(settings.tool_timeout),
            settings.max_turns,
            settings.max_observation_length,
        )

    def begin(self, prompt_ids: list[int], template_kwargs: Mapping[str, Any], console: Console) -> Episode:
        """Begins an answer, whose calls are shown on the console."""
        prompt = {"prompt_ids": prompt_ids, "template_kwargs": template_kwargs, "columns": {}, "index": 0}
        return _WatchedEpisode(prompt, self.toolbox, self._rules, self._allow, console)

    def marked(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The messages with marks in what tools have said, which [`~ChatTools.encode`] reads."""
        protected = self._template.untrusted.protected
        return [
            {name: protected(value) for name, value in message.items()} if message["role"] == "tool" else message
            for message in messages
        ]

    def encode(self, text: str) -> list[int]:
        """Encodes a rendered conversation; nothing that a tool has said becomes a special token."""
        return self._template.untrusted.encode(text)

    def close(self) -> None:
        """Ends the threads of tools."""
        self._rules.runner.close()


class _WatchedEpisode(Episode):
    """An episode whose calls are allowed one by one, and shown with their answers."""

    def __init__(
        self,
        prompt: dict[str, Any],
        toolbox: Toolbox,
        rules: EpisodeRules,
        allow: Callable[[str], bool],
        console: Console,
    ):
        super().__init__(prompt, toolbox, rules)
        self._allow, self._console = allow, console

    def answer_call(self, call: dict[str, Any]) -> dict[str, Any]:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        text = call_text(name, arguments)
        self._show("→", text)
        can_run = self._toolbox.check_arguments(name, arguments) is None
        if can_run and not self._allow(text):
            answer = {"role": "tool", "name": name, "content": self._failed("refused", REFUSAL)}
        else:
            answer = super().answer_call(call)
        self._show("←", answer["content"])
        return answer

    def answer_fault(self, fault: str) -> dict[str, Any]:
        answer = super().answer_fault(fault)
        self._show("←", answer["content"])
        return answer

    def _show(self, arrow: str, text: str) -> None:
        self._console.print(Text(f"{arrow} {text}", style="cyan"))
