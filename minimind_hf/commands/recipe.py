# SPDX-License-Identifier: Apache-2.0
"""`minimind-hf grpo` and so on: runs a recipe, in this process or, by accelerate's launcher, in several.

The recipes and accelerate's configurations are in the wheel, inside the package; in a checkout they are beside it.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).resolve().parents[1]
LAUNCHER = ("num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port")
"""Flags of `accelerate launch` that are passed on to it; every other setting of it is a line of its configuration."""


def main(recipe: str, arguments: Sequence[str]) -> int:
    """Runs a recipe with the arguments that are not for the launcher.

    Args:
        recipe (`str`): Its name.
        arguments (`Sequence[str]`): Flags of the recipe, `--accelerate_config NAME`, and those of `LAUNCHER`.

    Returns:
        `int`: Exit status; a recipe that fails exits by itself.

    Raises:
        ValueError: If the number of processes is below 1, or there is no such configuration.
    """
    parser = argparse.ArgumentParser(prog=f"minimind-hf {recipe}", add_help=False, allow_abbrev=False)
    for name in ("accelerate_config", *LAUNCHER):
        parser.add_argument(f"--{name}")
    options, rest = parser.parse_known_args(arguments)
    script = folder_of("recipes") / f"{recipe}.py"
    launcher = _launcher_flags(**vars(options))
    if not launcher:
        _run_here(parser.prog, script, rest)
        return 0
    command = [sys.executable, "-m", "accelerate.commands.launch", *launcher, str(script), *rest]
    return os.execv(sys.executable, command)  # this very process: who ends it ends the launcher


def folder_of(name: str) -> Path:
    """The folder `recipes` or `accelerate_configs`.

    Raises:
        ValueError: If it is neither in the package nor beside it.
    """
    for folder in (PACKAGE / name, PACKAGE.parent / name):
        if any(folder.glob("*.py")) or any(folder.glob("*.yaml")):
            return folder
    raise ValueError(f"There is no folder {name} in {PACKAGE} or beside it. Install minimind-hf again.")


def recipe_module(name: str) -> ModuleType:
    """A module of the folder `recipes`; they import each other by their bare names."""
    folder = str(folder_of("recipes"))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return import_module(name)


def _run_here(prog: str, script: Path, arguments: Sequence[str]) -> None:
    """Runs the script as `python SCRIPT` would, under the name of the command."""
    sys.argv = [prog, *arguments]
    recipe_module("running").run(recipe_module(script.stem).main)


def _launcher_flags(accelerate_config: str | None, **given: str | None) -> list[str]:
    """The flags of `accelerate launch`; none if the recipe is to run in this process."""
    given = {name: value for name, value in given.items() if value is not None}
    if accelerate_config is None and not given:
        return []
    number = given.get("num_processes")
    if number is not None and (not number.isdecimal() or int(number) < 1):
        raise ValueError(f"--num_processes is {number}. Give a whole number of at least 1.")
    file = _config_file(accelerate_config or ("cpu" if number == "1" else "ddp"))
    return ["--config_file", str(file), *(part for name, value in given.items() for part in (f"--{name}", value))]


def _config_file(name: str) -> Path:
    if Path(name).is_file():
        return Path(name)
    folder = folder_of("accelerate_configs")
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in known:
        raise ValueError(
            f"--accelerate_config {name}: there is no such file, and none of that name in {folder} "
            f"({', '.join(known)}). Name one of these, or a yaml file of accelerate."
        )
    return folder / f"{name}.yaml"
