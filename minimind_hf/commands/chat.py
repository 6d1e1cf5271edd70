# SPDX-License-Identifier: Apache-2.0
"""`minimind-hf chat`: chats with a model, in a terminal or with prompts given as flags."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..chat.settings import HELP, NO_SWITCH, AnswerSettings, ChatSettings, ToolSettings
from ..flags import ModelFlags, Repeated, flag, make_parser, refuse_unused, switch, taken


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
    tools: list[str] = flag(list, "functions that the model may call: FILE.py:name or module:name", metavar="TOOL")
    yes: bool = switch("run its calls without asking")

    def __post_init__(self):
        if self.yes and not self.tools:
            raise ValueError("--yes runs calls of tools without asking, but there are none. Add --tools.")


def main(arguments: Sequence[str]) -> int:
    parser = make_parser(
        "chat",
        "Streams a model's answers. Without --prompt, it reads lines until /exit or the end of input. With --tools, "
        "calls are really made, each after you have allowed it.",
        ChatFlags,
        AnswerSettings,
        ToolSettings,
        ModelFlags,
    )
    parser.add_argument("model", help="a model folder, a folder of adapters, or a Hub name")
    options = parser.parse_args(arguments)
    flags, answers, bounds = (taken(each, options) for each in (ChatFlags, AnswerSettings, ToolSettings))
    if not flags.tools:
        refuse_unused(bounds, "--tools")
    settings = ChatSettings(**vars(answers), thinking=flags.thinking, show_thinking=not flags.hide_thinking)
    return _chat(options.model, flags, settings, bounds, taken(ModelFlags, options))


def _chat(path: str, flags: ChatFlags, settings: ChatSettings, bounds: ToolSettings, of_model: ModelFlags) -> int:
    from transformers.utils.logging import disable_progress_bar  # all of these imported here to keep --help fast

    from ..agent.loading import load_tools
    from ..chat import Chat, ChatTools, converse
    from ..forward.introspection import eos_token_ids
    from ..inference import load_for_inference

    functions = load_tools(flags.tools)
    disable_progress_bar()
    model, tokenizer = load_for_inference(path, **vars(of_model))
    tools = None
    if functions:
        allow = (lambda call: True) if flags.yes else _allowed_at_the_terminal
        tools = ChatTools(functions, tokenizer, eos_token_ids(model, tokenizer), bounds, allow)
    chat = Chat(model, tokenizer, settings, flags.system, tools=tools)
    if chat.ignored:
        named = ", ".join(f"{name}={value!r}" for name, value in chat.ignored.items())
        print(f"not applied, as training and eval do not either: {named} (generation_config.json)", file=sys.stderr)
    if flags.thinking and not chat.has_thinking_switch():
        print(f"--thinking: {NO_SWITCH}", file=sys.stderr)
    if flags.prompt is None:
        chat.console.print(f"{path}: {HELP}", markup=False)
    try:
        converse(chat, _typed_lines() if flags.prompt is None else flags.prompt, flags.seed)
    finally:
        if tools is not None:
            tools.close()
    return 0


def _allowed_at_the_terminal(call: str) -> bool:
    """Asks; the end of input is a no."""
    try:
        return input("run it? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False


def _typed_lines() -> Iterator[str]:
    while True:
        try:
            yield input("> ")
        except (EOFError, KeyboardInterrupt):
            print()
            return
