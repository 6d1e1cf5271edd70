# SPDX-License-Identifier: Apache-2.0
"""The `minimind-hf` command.

Each subcommand is a module of `commands` with `main(arguments)`, which parses its own arguments. It is imported when
it is called, so that `--help` and light commands start at once. Errors of the user's making end in one line on stderr
and exit status 1.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from . import __version__

COMMANDS = {
    "convert": "convert between MiniMind's .pth, a MiniMind folder and a plain Qwen3 folder",
    "chat": "talk to a model",
    "eval": "score models on held-out prompts",
    "report": "write an HTML page about a run",
    "estimate": "say how much memory a run takes in each process",
}
_MODULES = {"eval": "evaluate"}  # where a module's name is not the command's


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments (`Sequence[str]`, *optional*): Arguments; unset, those of the process.

    Returns:
        `int`: Exit status: 0 on success, 1 for an error of the user's making (2 for a wrong usage, by argparse).
    """
    parser = argparse.ArgumentParser(
        prog="minimind-hf",
        description="Tools for MiniMind on transformers.",
        epilog="commands:\n" + "\n".join(f"  {name:<10}{help}" for name, help in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"minimind-hf {__version__}")
    parser.add_argument("command", metavar="COMMAND", choices=COMMANDS, help="one of the commands below")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="see minimind-hf COMMAND --help")
    options = parser.parse_args(arguments)
    module = import_module(f".commands.{_MODULES.get(options.command, options.command)}", __package__)
    try:
        return module.main(options.arguments)
    except (OSError, ValueError) as error:
        print(f"minimind-hf {options.command}: error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
