# SPDX-License-Identifier: Apache-2.0
"""Imports run downward: which room may import which, read off the source of every module."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "minimind_hf"
MOST_LINES = 350

# From the ground up. A module may import rooms of lower floors, and modules of its own room without a circle. The
# `__init__` of a room with rooms inside shows what they hold, so it stands above them.
FLOORS = (
    ("import_hooks", "lazy"),
    ("environment", "event_loop", "atomic", "paths", "import_paths", "bounds", "default_sizes", "flags", "tasks")
    + ("language",),
    ("algorithms", "reports"),
    ("forward", "models", "health"),
    ("rewards",),
    ("data",),
    ("rollout.errors", "rollout.samples", "rollout.session", "rollout.observers"),
    ("rollout.checks_of_kept", "rollout.transcript", "rollout.refill"),
    ("rollout.checks",),
    ("rollout.rounds",),
    ("rollout.engine", "rollout.agreement", "rollout.exported_weights"),
    ("rollout.torch", "rollout.sglang"),
    ("rollout",),
    ("agent",),
    ("trainer.settings",),
    ("trainer.distributed",),
    ("trainer.metrics",),
    ("trainer.models",),
    ("trainer.experience",),
    ("trainer.checkpoints",),
    ("trainer.logs",),
    ("trainer.proving",),
    ("trainer.step_guard", "trainer.steps"),
    ("trainer.evaluating", "trainer.probing", "trainer.trl_attributes", "trainer.choosing"),
    ("trainer.base",),
    ("trainer.grpo", "trainer.ppo", "trainer.distill"),
    ("trainer",),
    ("evaluation", "estimate", "inference"),
    ("chat",),
    ("commands",),
    ("",),
    ("cli",),
    ("__main__",),
)
# Rooms that import nothing of the project but these
ALONE = {
    "algorithms": (),
    "language": (),
    "health": ("atomic", "language", "reports"),
    "reports": ("atomic", "language"),
}


def modules() -> dict[str, Path]:
    """Every module by its name inside the package."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def room_of(module: str) -> str:
    """The longest name on a floor that the module is, or lies in."""
    names = [name for floor in FLOORS for name in floor if module == name or module.startswith(f"{name}.") or not name]
    return max(names, key=len)


def floor_of(module: str) -> int:
    room = room_of(module)
    return next(number for number, floor in enumerate(FLOORS) if room in floor)


def imports_of(module: str) -> set[str]:
    """Modules of the package that a module imports, wherever in it, types included."""
    path = MODULES[module]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        parents = module.split(".") if module else []
        up = node.level - (path.name == "__init__.py")
        base = [*parents[: len(parents) - up], *(node.module or "").split(".")]
        source = ".".join(part for part in base if part)
        for alias in node.names:
            inner = f"{source}.{alias.name}".lstrip(".")
            found.add(inner if inner in MODULES else source)
    return found


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_run_down(module):
    for imported in imports_of(module):
        assert imported in MODULES, f"{module or 'the package'} imports {imported}, which does not exist"
        is_same_room = room_of(imported) == room_of(module)
        assert is_same_room or floor_of(imported) < floor_of(module), f"{module} imports {imported}, which is above it"
        if room_of(module) in ALONE and not is_same_room:
            assert room_of(imported) in ALONE[room_of(module)], f"{module} imports {imported}"


def test_there_is_no_circle():
    seen: dict[str, bool] = {}  # whether a module is still being followed

    def follow(module: str, way: tuple[str, ...]) -> None:
        assert not seen.get(module), " -> ".join([*way, module])
        if module in seen:
            return
        seen[module] = True
        for imported in sorted(imports_of(module) - {module}):
            follow(imported, (*way, module))
        seen[module] = False

    for module in sorted(MODULES):
        follow(module, ())


@pytest.mark.parametrize("module", sorted(MODULES))
def test_files_stay_short(module):
    assert len(MODULES[module].read_text(encoding="utf-8").splitlines()) <= MOST_LINES


@pytest.mark.parametrize("room", sorted(name for name, path in MODULES.items() if path.name == "__init__.py"))
def test_every_room_says_what_it_is_for(room):
    text = ast.get_docstring(ast.parse(MODULES[room].read_text(encoding="utf-8"))) or ""
    assert text.count(".") >= 2, f"{room}: two or three sentences: what for, what it may import, where changes belong"
