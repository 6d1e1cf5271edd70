# SPDX-License-Identifier: Apache-2.0
"""What goes to the Hub beside the weights of a checkpoint, and adapters merged into their base.

Of a checkpoint the Trainer publishes weights and config. Without the code files of its architecture a MiniMind would
not load from there, and without its folder the critic would be an earlier one.
"""

import copy
import shutil
from pathlib import Path

from peft import PeftModel
from transformers import PreTrainedTokenizerBase

from ..models.adapters import POLICY_ADAPTER

MERGED_FOLDER = "merged"


def save_merged(policy: PeftModel, folder: str | Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Saves the policy with its own adapter merged; the policy itself stays as it is.

    Args:
        policy (`PeftModel`): With whole weights. Other adapters than its own (critic, reference) are left out.
        folder (`str` or `Path`): Gets the folder `merged`.
        tokenizer: Is saved beside it.
    """
    merged = copy.deepcopy(policy).merge_and_unload(adapter_names=[POLICY_ADAPTER])
    for saved in (merged, tokenizer):
        saved.save_pretrained(Path(folder) / MERGED_FOLDER)


def publish_folder(checkpoint: str | Path, folder: str | Path, subfolders: list[str]) -> None:
    """Copies code files, and folders of further models, from a checkpoint to where it is published from."""
    for path in Path(checkpoint).glob("*.py"):
        shutil.copy(path, Path(folder) / path.name)
    for name in subfolders:
        if (Path(checkpoint) / name).is_dir():
            shutil.copytree(Path(checkpoint) / name, Path(folder) / name, dirs_exist_ok=True)
