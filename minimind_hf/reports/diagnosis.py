# SPDX-License-Identifier: Apache-2.0
"""What an issue in a tracker needs to know of a run, read from its folder, without secrets and without torch."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .record import ERROR_FILE, HEALTH_FILE, RUN_FILE, STATE_FILE, read_lines

LAST_MESSAGES = 5
_SECRET_NAME = re.compile(r"(?i)(token|key|secret|password|credential)s?$")
_TOKEN_OF_VOCABULARY = re.compile(r"(?i)(bos|eos|pad|unk|sep|cls|mask)_token$")
_SECRET_TEXT = re.compile(r"\b(hf_|sk-|ghp_|glpat-|xox[bp]-)[A-Za-z0-9_\-]{8,}|(?<=://)[^/@\s]+@|(?i:bearer )\S+")
HIDDEN = "[hidden]"


def diagnose(folder: str | Path) -> dict[str, Any]:
    """Says of a run what was changed, what went wrong and how far it came.

    Args:
        folder (`str` or `Path`): The output_dir of the run.

    Returns:
        `dict`: `folder`, `algorithm`, `settings` (those that the user gave), `last_step`, `checkpoints`,
        `health` (the last messages), `error` (that ended the run; `None`: it ended well, or is running) and
        `unreadable` (files that are broken, with why).

    Raises:
        ValueError: If the folder does not hold a run.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"The folder {folder} does not exist. Give the output_dir of a run.")
    checkpoints = sorted(folder.glob("checkpoint-*"), key=lambda path: _number(path.name))
    states = [folder / STATE_FILE, *(checkpoint / STATE_FILE for checkpoint in checkpoints)]
    if not any(path.is_file() for path in [*states, folder / RUN_FILE, folder / ERROR_FILE]):
        raise ValueError(f"{folder} contains none of {RUN_FILE}, {STATE_FILE}. Give the output_dir of a run.")
    unreadable: dict[str, str] = {}
    run, error = (_read(folder / name, unreadable) for name in (RUN_FILE, ERROR_FILE))
    steps = [_read(path, unreadable).get("global_step", 0) for path in states]
    found = {
        "folder": folder.resolve().name,
        "algorithm": run.get("algorithm"),
        "settings": run.get("changed", run.get("settings", {})),
        "last_step": max([*steps, error.get("step", 0)]),
        "checkpoints": [path.name for path in checkpoints],
        "health": _health(folder / HEALTH_FILE, unreadable),
        "error": error or None,
        "unreadable": unreadable,
    }
    return without_secrets(found)


def without_secrets(value: Any, name: str = "") -> Any:
    """Hides what is secret by its name, what looks like a token, and the values of secret environment variables."""
    secrets = [text for variable, text in os.environ.items() if len(text) >= 8 and _SECRET_NAME.search(variable)]
    return _hidden(value, name, secrets)


def _hidden(value: Any, name: str, secrets: Sequence[str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _hidden(each, str(key), secrets) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_hidden(each, name, secrets) for each in value]
    if not isinstance(value, str) or not value:
        return value
    if _SECRET_NAME.search(name) and not _TOKEN_OF_VOCABULARY.search(name):
        return HIDDEN
    for secret in secrets:
        value = value.replace(secret, HIDDEN)
    return _SECRET_TEXT.sub(HIDDEN, value)


def _number(name: str) -> int:
    digits = name.rpartition("-")[2]
    return int(digits) if digits.isdigit() else -1


def _read(path: Path, unreadable: dict[str, str]) -> dict[str, Any]:
    """A JSON object; of a broken file nothing but why, since a broken run is what this is for."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        unreadable[path.name] = str(error)
        return {}
    if not isinstance(content, dict):
        unreadable[path.name] = f"a JSON {type(content).__name__}, not an object"
        return {}
    return content


def _health(path: Path, unreadable: dict[str, str]) -> list[dict[str, Any]]:
    try:
        return read_lines(path)[-LAST_MESSAGES:]
    except (OSError, ValueError) as error:
        unreadable[path.name] = str(error)
        return []
