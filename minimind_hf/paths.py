# SPDX-License-Identifier: Apache-2.0
"""Checks names of models that are paths, before the Hub is asked for a model with that name.

A folder of adapters, as saved by peft, stands for its base with these adapters.
"""

import json
import os
from pathlib import Path
from typing import Any

from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.file_download import repo_folder_name
from safetensors import SafetensorError, safe_open
from transformers.utils import ADAPTER_CONFIG_NAME, CONFIG_NAME


def check_model_path(name: str | Path, what: str = "model") -> None:
    """Refuses a name that is a path, or looks like one, if it does not lead to a usable folder.

    Args:
        name (`str` or `Path`): A folder or Hub name.
        what (`str`): Description of the model, for the message.

    Raises:
        ValueError: If the folder does not exist, the path is a .pth file, or a file of weights is broken. The base of
            adapters is checked too.
    """
    text = os.fspath(name)
    path = Path(text).expanduser()
    if text.endswith(".pth") and not path.is_dir():
        raise ValueError(
            f"The {what} {text!r} is a MiniMind checkpoint, not a model folder. Convert it first: minimind-hf convert "
            f"{text} FOLDER --tokenizer TOKENIZER_FOLDER"
        )
    if text and path.is_dir():
        check_weights(path)
        if holds_adapters(path):
            check_model_path(adapter_settings(path)["base_model_name_or_path"], f"base of the adapter {text}")
    elif text and path.exists():
        raise ValueError(f"The {what} {text!r} is a file. Pass the folder that contains it.")
    elif text.startswith((".", "/", "~")) or text.count("/") > 1 or not text:
        raise ValueError(
            f"The folder of the {what}, {text!r}, does not exist (looked in {Path.cwd()}). Check the path."
        )


def check_loadable(name: str | Path, what: str = "model", cache_dir: str | Path | None = None) -> None:
    """As [`check_model_path`]; also checks that a name which is not a folder was downloaded or that the Hub answers.

    This takes one request. Loading in transformers would retry for a minute, and its error does not name the model.

    Args:
        name (`str` or `Path`): A folder or Hub name.
        what (`str`): Description of the model, for the message.
        cache_dir (`str` or `Path`, *optional*): Folder of downloads. Default: the Hub's cache.

    Raises:
        ValueError: As in [`check_model_path`], and if the Hub cannot be reached. Errors from the Hub are left to
        loading.
    """
    check_model_path(name, what)
    text = os.fspath(name)
    if Path(text).expanduser().is_dir():
        if holds_adapters(text):
            base = adapter_settings(text)["base_model_name_or_path"]
            check_loadable(base, f"base of the adapter {text}", cache_dir)
        return
    if _was_downloaded(text, Path(cache_dir or constants.HF_HUB_CACHE)):
        return
    try:
        get_hf_file_metadata(hf_hub_url(text, CONFIG_NAME))
    except (HfHubHTTPError, HFValidationError):
        return
    except Exception as error:  # the Hub's client has changed its HTTP library, and these classes, before
        raise ValueError(
            f"The {what} {text!r} is not a folder in {Path.cwd()}, was not downloaded before, and the Hub cannot be "
            f"reached ({error}). Check the name and the connection."
        ) from error


def _was_downloaded(name: str, cache_dir: Path) -> bool:
    return any((cache_dir / repo_folder_name(repo_id=name, repo_type="model") / "snapshots").glob("*"))


def holds_adapters(folder: str | Path) -> bool:
    """Whether a folder holds adapters, as saved by peft."""
    return (Path(folder).expanduser() / ADAPTER_CONFIG_NAME).is_file()


def adapter_settings(folder: str | Path) -> dict[str, Any]:
    """Returns the config of adapters: their base (`base_model_name_or_path`), their rank (`r`) and so on.

    Raises:
        ValueError: If the file is broken or does not name a base.
    """
    file = Path(folder).expanduser() / ADAPTER_CONFIG_NAME
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
        base = settings.get("base_model_name_or_path")
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{file} is not a valid JSON object ({error}). Copy or save the adapter again.") from error
    if not base or not isinstance(base, str):
        raise ValueError(
            f"{folder} is an adapter that does not name its base model. Set base_model_name_or_path in its "
            f"{ADAPTER_CONFIG_NAME}."
        )
    return settings


def check_weights(folder: str | Path) -> None:
    """Refuses a folder with a safetensors file that is truncated or invalid.

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
