# SPDX-License-Identifier: Apache-2.0
"""Runs a recipe whose supervised start is taken from a folder, or left there for the next run.

    python benchmarks/shared_start.py START recipes/grpo.py --seed 1

A start depends on the task and the seed only, so runs of several algorithms can share one.
"""

import json
import runpy
import shutil
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

MEASURED = "measured.json"


def once(make_start: Callable[..., Any], start: Path, *arguments: Any) -> Any:
    """What `make_start` measures of the start that it makes; it is not called if the start is there."""
    file = start / MEASURED
    if not file.exists():
        measured = make_start(*arguments)
        file.write_text(json.dumps(measured))
    return json.loads(file.read_text())


def kept(make_start: Callable[..., Any], start: Path) -> Callable[..., Any]:
    """`make_start` of an embedded task, which makes the start in one folder and copies it to the one that is asked."""

    @wraps(make_start)
    def made(*arguments: Any) -> Any:
        folder = next(each for each in arguments if isinstance(each, Path))
        measured = once(make_start, start, *(start if each is folder else each for each in arguments))
        shutil.copytree(start, folder)
        return measured

    return made


def main() -> None:
    _, start, *sys.argv = sys.argv
    sys.path[0] = str(Path(sys.argv[0]).parent)
    import agent_world  # those of the recipe
    import embedded_task

    for module in (agent_world, embedded_task):
        module.make_start = kept(module.make_start, Path(start))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
