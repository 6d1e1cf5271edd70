# SPDX-License-Identifier: Apache-2.0
"""The `minimind-hf` command.

Each subcommand is one function that adds its arguments and one that runs them; what a subcommand needs is imported
when it runs, so `--help` stays quick. Errors of the user's making end in one line on stderr and exit status 1.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .commands import chat, evaluate, report


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments (`Sequence[str]`, *optional*): Arguments; unset, those of the process.

    Returns:
        `int`: Exit status: 0 on success, 1 for an error of the user's making (2 for a wrong usage, by argparse).
    """
    parser = argparse.ArgumentParser(prog="minimind-hf", description="Tools for MiniMind on transformers.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add_command in _COMMANDS:
        add_command(commands)
    options = parser.parse_args(arguments)
    try:
        return options.run(options)
    except (OSError, ValueError) as error:
        print(f"minimind-hf {options.command}: error: {error}", file=sys.stderr)
        return 1


def _add_convert(commands: Any) -> None:
    parser = commands.add_parser(
        "convert",
        help="convert between MiniMind's .pth, a MiniMind folder and a plain Qwen3 folder",
        description="Converts a MiniMind .pth, or a MiniMind, Qwen3 or Qwen3-MoE folder, to another of these formats.",
    )
    parser.add_argument("source", type=Path, help="a .pth file or a model folder")
    parser.add_argument("destination", type=Path, help="the .pth file or folder to write")
    parser.add_argument("--to", metavar="TARGET", help="minimind, qwen3 or pth (default: by the destination's name)")
    parser.add_argument(
        "--config",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE|KEY=VALUE",
        help="config values that the tensors do not tell: a config.json and/or pairs such as num_experts_per_tok=2",
    )
    parser.add_argument("--tokenizer", type=Path, metavar="DIR", help="copy the tokenizer of this folder")
    parser.add_argument("--dtype", metavar="DTYPE", help="float32, float16 or bfloat16 (default: keep; .pth: float16)")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing destination")
    parser.set_defaults(run=_run_convert)


def _run_convert(options: argparse.Namespace) -> int:
    from transformers.utils.logging import disable_progress_bar

    from .models.convert import convert

    disable_progress_bar()
    written = convert(
        options.source,
        options.destination,
        to=options.to,
        config=parse_config_values(options.config),
        tokenizer=options.tokenizer,
        dtype=options.dtype,
        overwrite=options.overwrite,
    )
    print(f"wrote {written}")
    return 0


def parse_config_values(items: Sequence[str]) -> dict[str, Any]:
    """Merges JSON files and `key=value` pairs, the later ones winning.

    Args:
        items (`Sequence[str]`): Paths of JSON objects, or pairs whose value is JSON or else a string.

    Returns:
        `dict[str, Any]`: The merged values.

    Raises:
        ValueError: An item is neither a pair nor a readable JSON object.
    """
    values: dict[str, Any] = {}
    for item in items:
        if "=" in item and not Path(item).is_file():
            key, _, text = item.partition("=")
            values[key.strip()] = _json_or_text(text)
        else:
            values |= _read_json_object(Path(item))
    return values


def _json_or_text(text: str) -> Any:
    lowered = {"True": "true", "False": "false", "None": "null"}.get(text, text)
    try:
        return json.loads(lowered)
    except json.JSONDecodeError:
        return text


def _read_json_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"{path} is neither a file nor a KEY=VALUE pair.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a JSON {type(content).__name__}; a config is an object.")
    return content


_COMMANDS = (_add_convert, chat.add, evaluate.add, report.add)


if __name__ == "__main__":
    sys.exit(main())
