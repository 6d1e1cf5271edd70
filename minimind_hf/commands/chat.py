# SPDX-License-Identifier: Apache-2.0
"""`minimind-hf chat`: talks to a model, in a terminal or by prompts given as flags."""

import argparse
import math
import sys
from collections.abc import Iterator
from typing import Any


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "chat",
        help="talk to a model",
        description="Streams a model's answers. Without --prompt it asks for lines until /exit or the end of input.",
    )
    parser.add_argument("model", help="a model folder, a folder of adapters, or a hub name")
    parser.add_argument("--prompt", action="append", metavar="TEXT", help="say this and end; again for further turns")
    parser.add_argument("--system", metavar="TEXT", help="system prompt")
    parser.add_argument("--thinking", action="store_true", help="let the model think before it answers")
    parser.add_argument("--hide_thinking", action="store_true", help="do not show what it thinks")
    parser.add_argument("--max_new_tokens", type=int, default=512, metavar="N", help="cut answers here (default 512)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, metavar="T", help="0: always the likeliest token (default 0.8)"
    )
    parser.add_argument("--top_p", type=float, default=1.0, metavar="P", help="nucleus sampling (default 1.0: off)")
    parser.add_argument("--top_k", type=int, default=0, metavar="K", help="the K likeliest tokens (default 0: off)")
    parser.add_argument(
        "--min_p",
        type=float,
        default=0.0,
        metavar="P",
        help="only tokens this likely, relative to the likeliest (default 0: off)",
    )
    parser.add_argument(
        "--repetition_penalty",
        type=float,
        default=1.0,
        metavar="X",
        help="above 1: less of the same (default 1.0: off)",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="makes sampled answers repeatable")
    add_model_options(parser)
    parser.set_defaults(run=_run)


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Flags of every command that loads a model."""
    parser.add_argument("--device", metavar="DEVICE", help="cpu, cuda, ... (default: a GPU if there is one)")
    parser.add_argument("--dtype", default="auto", help="float32, bfloat16, float16 (default: as saved)")
    parser.add_argument("--trust_remote_code", action="store_true", help="run code that the model brings along")


def _run(options: argparse.Namespace) -> int:
    _check(options)

    from transformers.utils.logging import disable_progress_bar

    from ..chat import HELP, NO_SWITCH, Chat, ChatSettings, converse
    from ..inference import load_for_inference

    disable_progress_bar()
    model, tokenizer = load_for_inference(
        options.model, device=options.device, dtype=options.dtype, trust_remote_code=options.trust_remote_code
    )
    settings = ChatSettings(
        thinking=options.thinking,
        show_thinking=not options.hide_thinking,
        max_new_tokens=options.max_new_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        min_p=options.min_p,
        repetition_penalty=options.repetition_penalty,
    )
    chat = Chat(model, tokenizer, settings, options.system)
    if options.thinking and not chat.has_thinking_switch():
        print(f"--thinking: {NO_SWITCH}", file=sys.stderr)
    if options.prompt is None:
        chat.console.print(f"{options.model}: {HELP}", markup=False)
    converse(chat, _typed_lines() if options.prompt is None else options.prompt, options.seed)
    return 0


def _check(options: argparse.Namespace) -> None:
    if options.max_new_tokens < 1:
        raise ValueError(f"--max_new_tokens is {options.max_new_tokens}; an answer has at least 1 token.")
    if not 0 <= options.temperature < math.inf:
        raise ValueError(f"--temperature is {options.temperature}; it is 0 (always the likeliest token) or above.")
    if not 0 < options.top_p <= 1:
        raise ValueError(f"--top_p is {options.top_p}; it is above 0, and at most 1 (off).")
    if options.top_k < 0:
        raise ValueError(f"--top_k is {options.top_k}; it is 0 (off) or above.")
    if not 0 <= options.min_p <= 1:
        raise ValueError(f"--min_p is {options.min_p}; it is between 0 (off) and 1.")
    if not 0 < options.repetition_penalty < math.inf:
        raise ValueError(f"--repetition_penalty is {options.repetition_penalty}; it is above 0 (1: off).")


def _typed_lines() -> Iterator[str]:
    while True:
        try:
            yield input("> ")
        except (EOFError, KeyboardInterrupt):
            print()
            return
