# SPDX-License-Identifier: Apache-2.0
"""Adapters merged into their base, saved as an ordinary model that needs no peft to load."""

import copy
from pathlib import Path

from peft import PeftModel
from transformers import PreTrainedTokenizerBase

from .adapters import POLICY_ADAPTER

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
