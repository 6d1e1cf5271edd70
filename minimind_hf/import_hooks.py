# SPDX-License-Identifier: Apache-2.0
"""Calls a function just before or just after a module is imported, whoever imports it, without importing it here.

One finder stands first in `sys.meta_path`. It lets the others find a module and only wraps the loader of the few
modules that somebody asked about. The function runs while the module's import lock is held, so no thread sees the
module without it; it must not import anything whose import may wait for that module.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def before_import(name: str, call: Callable[[], None]) -> None:
    """Calls `call()` before the module is executed for the first time, and again before each reload.

    A module that is already there is left alone: the function would come too late.

    Args:
        name (`str`): Full name of the module.
        call (`Callable`): Called without arguments.
    """
    _finder().before[name] = call


def after_import(name: str, call: Callable[[ModuleType], None]) -> None:
    """Calls `call(module)` after the module has been executed, and again after each reload; at once if it is there.

    Another call for the same module takes the place of the first.

    Args:
        name (`str`): Full name of the module.
        call (`Callable`): Called with the module. Calling it twice must do no harm.
    """
    _finder().after[name] = call
    if name in sys.modules:
        call(import_module(name))  # waits where another thread is importing it at the moment


class _Finder:
    """Finds nothing by itself. See the module's docstring."""

    def __init__(self):
        self.before: dict[str, Callable[[], None]] = {}
        self.after: dict[str, Callable[[ModuleType], None]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.before and fullname not in self.after:
            return None
        for finder in list(sys.meta_path):
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:  # None: a folder without code
                    spec.loader = _CallingLoader(spec.loader, self.before.get(fullname), self.after.get(fullname))
                return spec
        return None


class _CallingLoader:
    """Stands in for a module's loader until the module is executed; the module keeps its own."""

    def __init__(self, loader: Any, before: Callable | None, after: Callable | None):
        self._loader = loader
        self._before = before
        self._after = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = module.__spec__.loader = self._loader
        if self._before is not None:
            self._before()
        self._loader.exec_module(module)
        if self._after is not None:
            self._after(module)


def _finder() -> _Finder:
    """The one finder, which a reload of this module keeps."""
    for finder in sys.meta_path:
        if type(finder).__module__ == __name__ and type(finder).__name__ == _Finder.__name__:
            return finder
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    return finder
