# SPDX-License-Identifier: Apache-2.0
"""Names of models that are paths, checked before the hub is asked for something of that name."""

import os
from pathlib import Path

from safetensors import SafetensorError, safe_open


def check_model_path(name: str | Path, what: str = "model") -> None:
    """Refuses what has the shape of a path, or is one, where no usable folder is.

    Args:
        name (`str` or `Path`): A folder or hub name.
        what (`str`): What it is, for the message.

    Raises:
        ValueError: If there is no such folder, or a file of weights in it is broken.
    """
    text = os.fspath(name)
    path = Path(text).expanduser()
    if path.is_dir():
        check_weights(path)
    elif path.exists():
        raise ValueError(f"The {what} {text!r} is a file. Give the folder that it is in.")
    elif text.startswith((".", "/", "~")) or text.count("/") > 1 or not text:
        raise ValueError(
            f"The folder of the {what}, {text!r}, does not exist (looked in {Path.cwd()}). Check the path."
        )


def check_weights(folder: str | Path) -> None:
    """Refuses a folder with a safetensors file that cannot be read: cut, or no such file at all.

    Raises:
        ValueError: Naming the file.
    """
    for file in sorted(Path(folder).glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise ValueError(
                f"{file} cannot be read ({error}). It may be incomplete: copy or save it again."
            ) from error
