# SPDX-License-Identifier: Apache-2.0
"""The `minimind-hf` command.

Each subcommand is a module of `commands` with `main(arguments)`, which parses its own arguments; a recipe is run by
`commands/recipe.py`. It is imported when it is called, so that `--help` and light commands start at once. Errors of
the user's making end in one line on stderr and exit status 1; with `--debug` before the command, with a traceback.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from . import __version__

RECIPES = {
    "sft": "supervised training: pretraining and instruction tuning",
    "dpo": "preference training",
    "reward": "train a reward model on preferences",
    "grpo": "reinforcement learning with CISPO or GRPO",
    "ppo": "reinforcement learning with PPO and a critic",
    "agent": "the same on episodes with tools or an environment",
    "distill": "distillation: a student's own completions, judged by a teacher",
}
COMMANDS = {
    "convert": "convert between MiniMind's .pth, a MiniMind folder and a plain Qwen3 folder",
    "chat": "talk to a model",
    "eval": "score models on held-out prompts",
    "report": "write an HTML page about a run, or compare several",
    "doctor": "print what an issue needs: versions, fast paths, what a run changed and what ended it",
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
        description="Trains small language models, and tools for what comes before and after.",
        epilog=f"{_listed('training', RECIPES)}\n\n{_listed('tools', COMMANDS)}\n\n{_SEVERAL}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"minimind-hf {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error, not one line")
    parser.add_argument("command", metavar="COMMAND", choices=RECIPES | COMMANDS, help="one of the commands below")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="see minimind-hf COMMAND --help")
    options = parser.parse_args(arguments)
    try:
        return _run(options.command, options.arguments, options.debug)
    except (OSError, ValueError) as error:
        if options.debug:
            raise
        print(f"minimind-hf {options.command}: error: {error}", file=sys.stderr)
        return 1


_SEVERAL = "training in several processes: minimind-hf COMMAND --num_processes 2 --accelerate_config zero2 ..."


def _listed(title: str, commands: dict[str, str]) -> str:
    return f"{title}:\n" + "\n".join(f"  {name:<10}{help}" for name, help in commands.items())


def _run(command: str, arguments: Sequence[str], shows_all: bool) -> int:
    if command in RECIPES:
        from .commands.recipe import main as run_recipe

        return run_recipe(command, [*arguments, "--debug"] if shows_all else arguments)
    return import_module(f".commands.{_MODULES.get(command, command)}", __package__).main(arguments)
