# SPDX-License-Identifier: Apache-2.0
"""`minimind-hf chat`: chats with a model, in a terminal or with prompts given as flags."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transformers.utils.logging import disable_progress_bar

from ..chat import HELP, NO_SWITCH, AnswerSettings, Chat, ChatSettings, converse
from ..flags import ModelFlags, Repeated, flag, make_parser, switch, taken
from ..inference import load_for_inference


@dataclass
class ChatFlags:
    """Flags of the command, besides those of the model and its answers."""

    prompt: list[str] | None = flag(
        None, "say this, then exit; repeat for more turns", action=Repeated, metavar="TEXT"
    )
    system: str | None = flag(None, "system prompt", metavar="TEXT")
    thinking: bool = switch("let the model think before it answers")
    hide_thinking: bool = switch("do not show its thoughts")
    seed: int | None = flag(None, "seed, for repeatable answers", metavar="N")


def main(arguments: Sequence[str]) -> int:
    parser = make_parser(
        "chat",
        "Streams a model's answers. Without --prompt, it reads lines until /exit or the end of input.",
        ChatFlags,
        AnswerSettings,
        ModelFlags,
    )
    parser.add_argument("model", help="a model folder, a folder of adapters, or a Hub name")
    options = parser.parse_args(arguments)
    flags, answers = taken(ChatFlags, options), taken(AnswerSettings, options)
    settings = ChatSettings(**vars(answers), thinking=flags.thinking, show_thinking=not flags.hide_thinking)
    disable_progress_bar()
    model, tokenizer = load_for_inference(options.model, **vars(taken(ModelFlags, options)))
    chat = Chat(model, tokenizer, settings, flags.system)
    if flags.thinking and not chat.has_thinking_switch():
        print(f"--thinking: {NO_SWITCH}", file=sys.stderr)
    if flags.prompt is None:
        chat.console.print(f"{options.model}: {HELP}", markup=False)
    converse(chat, _typed_lines() if flags.prompt is None else flags.prompt, flags.seed)
    return 0


def _typed_lines() -> Iterator[str]:
    while True:
        try:
            yield input("> ")
        except (EOFError, KeyboardInterrupt):
            print()
            return
