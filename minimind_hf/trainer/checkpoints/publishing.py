# SPDX-License-Identifier: Apache-2.0
"""What goes to the Hub besides the weights of a checkpoint, and adapters merged into their base.

The Trainer publishes the weights and the config of a checkpoint. Without the code files of its architecture a MiniMind
would not load from there, and without its folder the critic would be an earlier one.
"""

import copy
import shutil
from pathlib import Path

from peft import PeftModel
from transformers import PreTrainedTokenizerBase

from ..models.adapters import POLICY_ADAPTER

MERGED_FOLDER = "merged"


def save_merged(policy: PeftModel, folder: str | Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Saves the policy with its own adapter merged. The policy itself does not change.

    Args:
        policy (`PeftModel`): The policy with whole weights. Other adapters (critic, reference) are left out.
        folder (`str` or `Path`): Where the folder `merged` is made.
        tokenizer: Saved with it.
    """
    merged = copy.deepcopy(policy).merge_and_unload(adapter_names=[POLICY_ADAPTER])
    for saved in (merged, tokenizer):
        saved.save_pretrained(Path(folder) / MERGED_FOLDER)


def publish_folder(checkpoint: str | Path, folder: str | Path, subfolders: list[str]) -> None:
    """Copies code files and folders of other models from a checkpoint to the folder that is published."""
    for path in Path(checkpoint).glob("*.py"):
        shutil.copy(path, Path(folder) / path.name)
    for name in subfolders:
        if (Path(checkpoint) / name).is_dir():
            shutil.copytree(Path(checkpoint) / name, Path(folder) / name, dirs_exist_ok=True)
