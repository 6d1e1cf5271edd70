# SPDX-License-Identifier: Apache-2.0
"""Whether a checkpoint is of the model, and of the algorithm, that a run would resume it with."""

import json
from collections.abc import Sequence
from pathlib import Path

from torch import nn
from transformers.utils import CONFIG_NAME

from ...forward.introspection import SIZES, differing, unwrap
from .resuming import CheckpointError

CRITIC = "critic"


def check_same_model(folder: str | Path, model: nn.Module, further: Sequence[str]) -> None:
    """Refuses a checkpoint of a model of another shape, and one of PPO where there is no critic.

    Args:
        folder (`str` or `Path`): The checkpoint.
        model (`nn.Module`): The policy.
        further (`Sequence[str]`): Folders of the other models that this trainer keeps in its checkpoints.

    Raises:
        CheckpointError: With what differs.
    """
    folder = Path(folder)
    if (folder / CRITIC).is_dir() and CRITIC not in further:  # PPO looks for its critic itself
        raise CheckpointError(
            f"{folder} was written with a critic (PPO), and this trainer trains none, so the optimizer does not fit. "
            "Resume it with PPO, or start from the folder as a model (--model_name_or_path)."
        )
    if not (folder / CONFIG_NAME).is_file():
        return  # adapters, which are compared by their own settings
    saved = json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8"))
    own = unwrap(model).config.to_dict()
    other = differing(own, saved, ("model_type", "vocab_size", *SIZES))
    if other:
        told = "; ".join(f"{name} is {own[name]!r}, in the checkpoint {saved[name]!r}" for name in other)
        raise CheckpointError(
            f"{folder} is a checkpoint of another model: {told}. Resume it with the model of the run that wrote it, "
            "or start from the folder as a model (--model_name_or_path)."
        )
