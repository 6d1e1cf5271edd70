# SPDX-License-Identifier: Apache-2.0
"""Loads objects from the user's code by import path: `module:name` or `folder/file.py:name`."""

import importlib
import importlib.util
import operator
import sys
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any


class ImportPathError(ValueError):
    """An import path that cannot be resolved."""


def is_import_path(spec: object) -> bool:
    return isinstance(spec, str) and ":" in spec


def load_object(spec: str) -> Any:
    """Returns the object that an import path names.

    Args:
        spec (`str`): `"module:name"` or `"folder/file.py:name"`; the name may contain dots.

    Raises:
        ImportPathError: Naming the module, file or attribute that cannot be found or raises an error.
    """
    source, _, attribute = spec.rpartition(":")
    module = _load_file(spec, Path(source)) if source.endswith(".py") else _load_module(spec, source)
    try:
        return operator.attrgetter(attribute)(module)
    except AttributeError as error:
        raise ImportPathError(f"{spec!r}: {source!r} has no {attribute!r}. Check the name after the colon.") from error


def _load_module(spec: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise ImportPathError(
            f"{spec!r}: the module {name!r} cannot be imported ({type(error).__name__}: {error}). For a file outside "
            "the import path write 'folder/file.py:name'."
        ) from error


def _load_file(spec: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise ImportPathError(f"{spec!r}: there is no file {str(path)!r} (looked in {Path.cwd()}). Check the path.")
    # The name is unique to the path, so that two files with the same name do not become one module.
    name = f"user_file_{path.stem}_{zlib.crc32(str(path.resolve()).encode()):08x}"
    if name in sys.modules:
        return sys.modules[name]
    module_spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    try:
        module_spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ImportPathError(f"{spec!r}: the file raised {type(error).__name__} when run: {error}") from error
    return module
