# SPDX-License-Identifier: Apache-2.0
"""Checks names of models that are paths, before the Hub is asked for a model with that name.

A folder of adapters, as saved by peft, stands for its base with these adapters.
"""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.file_download import repo_folder_name
from safetensors import SafetensorError, safe_open
from transformers.utils import ADAPTER_CONFIG_NAME, CONFIG_NAME


def check_model_path(name: str | Path, what: str = "model", needs_weights: bool = True) -> None:
    """Refuses a name that is a path, or looks like one, if it does not lead to a usable folder.

    Args:
        name (`str` or `Path`): A folder or Hub name.
        what (`str`): Description of the model, for the message.
        needs_weights (`bool`): Whether the folder has to hold weights, or only a config.

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
        if needs_weights:
            _check_contents(path, what)
        check_weights(path)
        if holds_adapters(path):
            base = adapter_settings(path)["base_model_name_or_path"]
            check_model_path(base, f"base of the adapter {text}", needs_weights)
    elif text and path.exists():
        raise ValueError(f"The {what} {text!r} is a file. Pass the folder that contains it.")
    elif text.startswith((".", "/", "~")) or text.count("/") > 1 or not text:
        raise ValueError(
            f"The folder of the {what}, {text!r}, does not exist (looked in {Path.cwd()}). Check the path."
        )


def check_loadable(
    name: str | Path, what: str = "model", cache_dir: str | Path | None = None, needs_weights: bool = True
) -> None:
    """As [`check_model_path`]; also checks that a name which is not a folder was downloaded or that the Hub answers.

    This takes one request. Loading in transformers would retry for a minute, and its error does not name the model.

    Args:
        name (`str` or `Path`): A folder or Hub name.
        what (`str`): Description of the model, for the message.
        cache_dir (`str` or `Path`, *optional*): Folder of downloads. Default: the Hub's cache.
        needs_weights (`bool`): Whether a folder has to hold weights, or only a config.

    Raises:
        ValueError: As in [`check_model_path`], and if the Hub cannot be reached. Errors from the Hub are left to
        loading.
    """
    check_model_path(name, what, needs_weights)
    text = os.fspath(name)
    if Path(text).expanduser().is_dir():
        if holds_adapters(text):
            base = adapter_settings(text)["base_model_name_or_path"]
            check_loadable(base, f"base of the adapter {text}", cache_dir, needs_weights)
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


# One of each kind has to be there
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf", "*.msgpack", "*.h5", "*.index.json")
_TOKENIZER = ("tokenizer*", "vocab*", "merges.txt", "spiece.model", "*.model", "*.tiktoken", "tekken.json")


def _check_contents(folder: Path, what: str) -> None:
    """Refuses a folder that is not one of a model, nor holds models in its subfolders."""
    if holds_adapters(folder) or any(True for _ in folder.glob("*.gguf")):
        return
    if (folder / CONFIG_NAME).is_file():
        missing = [] if any(True for kind in _WEIGHTS for _ in folder.glob(kind)) else ["weights (model.safetensors)"]
    else:
        missing = [] if any(True for _ in folder.glob(f"*/{CONFIG_NAME}")) else [CONFIG_NAME]
    if missing:
        raise ValueError(
            f"The folder of the {what}, {str(folder)!r}, holds no {missing[0]}: {_listed(folder)}. Give a folder that "
            "save_pretrained, or a run, has written."
        )


def check_tokenizer_files(folder: str | Path) -> None:
    """Refuses a folder without any file of a tokenizer; transformers would ask for sentencepiece or tiktoken.

    Raises:
        ValueError: Naming the folder and what it holds.
    """
    path = Path(folder).expanduser()
    if path.is_dir() and not any(True for kind in _TOKENIZER for _ in path.glob(kind)):
        raise ValueError(
            f"The folder {os.fspath(folder)!r} holds no tokenizer (no tokenizer.json, tokenizer_config.json or the "
            f"like): {_listed(path)}. Copy the files of the model's tokenizer there, or save it into the folder: "
            "tokenizer.save_pretrained(folder)."
        )


def _listed(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"there is {', '.join(names[:8])}{more}" if names else "it is empty"


def check_nothing_missing(
    name: str | Path, model: Any, loading_info: dict[str, Any], what: str = "model", new_head: bool = False
) -> None:
    """Refuses weights that lack tensors of the model, which transformers would leave at random values.

    Args:
        name (`str` or `Path`): Where they come from.
        model (`PreTrainedModel`): What they were loaded into.
        loading_info (`dict`): What `from_pretrained` returns with `output_loading_info`.
        what (`str`): What it is, for the message.
        new_head (`bool`): Whether the model gets a new head, as a reward model that starts from a language model.

    Raises:
        ValueError: Naming the tensors.
    """
    missing = sorted(loading_info["missing_keys"])
    if new_head:
        missing = [key for key in missing if key.startswith(f"{model.base_model_prefix}.")]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ValueError(
            f"The {what} {os.fspath(name)!r} lacks {', '.join(missing[:3])}{more} of a {type(model).__name__}, which "
            "would start at random values. The folder is incomplete, or its weights are named for another class: save "
            "or download the model again."
        )


@contextmanager
def without_load_report() -> Iterator[None]:
    """Leaves out transformers' table of tensors that a file lacks, where a model gets a new head on purpose.

    Whoever uses this looks at the tensors that are missing itself.
    """

    def is_other(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    log = logging.getLogger("transformers.modeling_utils")
    log.addFilter(is_other)
    try:
        yield
    finally:
        log.removeFilter(is_other)
