# SPDX-License-Identifier: Apache-2.0
"""Tools and environments by import path, for the command line: `file.py:name`, `module:name`, `textarena:NAME`."""

from collections.abc import Callable, Sequence
from typing import Any

from ..import_paths import is_import_path, load_object
from .errors import AgentError
from .games import PREFIX, environment_factory_of
from .tools import Toolbox


def load_tools(specs: Sequence[str]) -> list[Callable]:
    """Loads functions, and checks that they can be described to a model.

    Args:
        specs (`Sequence[str]`): Such as `"tools.py:search"` or `"minimind_hf.agent:calculate"`; also lists of
            functions.

    Raises:
        AgentError: If one is no import path, no function, or cannot be described.
        ImportPathError: If one cannot be found.
    """
    found = [load_object(_checked("--tools", spec)) for spec in specs]
    functions = [each for some in found for each in (some if isinstance(some, list | tuple) else [some])]
    try:
        Toolbox(functions)
    except (TypeError, ValueError) as error:
        raise AgentError(f"--tools {' '.join(specs)}: {error}") from error
    return functions


def load_environment(spec: str) -> Any:
    """Loads what makes environments: a class, a factory, a dictionary of them, or a game of textarena.

    Args:
        spec (`str`): Such as `"game.py:Game"` or `"textarena:FrozenLake-v0"`.

    Raises:
        AgentError: If it is no import path.
        ImportPathError: If it cannot be found.
    """
    if spec.startswith(PREFIX):
        return environment_factory_of(spec)
    return load_object(_checked("--environment", spec))


def _checked(flag: str, spec: str) -> str:
    if not is_import_path(spec):
        raise AgentError(f"{flag} has {spec!r}; write 'file.py:name' or 'module:name'.")
    return spec
