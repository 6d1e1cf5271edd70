# SPDX-License-Identifier: Apache-2.0
"""What goes to the Hub beside weights while a run goes on, and what must never leave the machine.

Of a checkpoint the Trainer publishes weights and config. Without the code files of its architecture a MiniMind would
not load from there, and without its folder the critic would be the one of before.
"""

import shutil
from pathlib import Path
from typing import Any

SECRET = "token"


def publish_folder(checkpoint: str | Path, folder: str | Path, subfolders: list[str]) -> None:
    """Copies code files, and folders of further models, from a checkpoint to where it is published from."""
    for path in Path(checkpoint).glob("*.py"):
        shutil.copy(path, Path(folder) / path.name)
    for name in subfolders:
        if (Path(checkpoint) / name).is_dir():
            shutil.copytree(Path(checkpoint) / name, Path(folder) / name, dirs_exist_ok=True)


def without_secrets(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns settings without the values of tokens, also those among the arguments of a model."""
    cleaned = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            value = without_secrets(value)
        is_secret = isinstance(name, str) and (name == SECRET or name.endswith(f"_{SECRET}"))
        cleaned[name] = None if is_secret and isinstance(value, str) and not _is_token_name(name) else value
    return cleaned


def _is_token_name(name: str) -> bool:
    """Tokens of a vocabulary (`eos_token`, ...) are no secrets."""
    return name in {"bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"}
