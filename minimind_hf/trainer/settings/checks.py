# SPDX-License-Identifier: Apache-2.0
"""Checks of single settings: types and bounds as declared, those of transformers' own, and what only has one value."""

import functools
import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from transformers import TrainingArguments

from ...bounds import Bounds, Count, check_settings, declared_types

_OffAt0 = Annotated[float, Bounds(at_least=0, remedy="0 switches it off.")]
_BOUNDS_OF_INHERITED = {
    "learning_rate": _OffAt0,
    "max_grad_norm": _OffAt0,
    "weight_decay": _OffAt0,
    "num_train_epochs": _OffAt0,
    "per_device_train_batch_size": Count,
    "gradient_accumulation_steps": Count,
    "max_steps": Annotated[int, Bounds(at_least=-1, remedy="-1: as many as num_train_epochs makes.")],
    "seed": Annotated[int, Bounds(at_least=0, at_most=2**32 - 1)],
    "warmup_steps": _OffAt0,
    "logging_steps": Annotated[
        float,
        Bounds(at_least=0, remedy="Below 1 it is a share of all steps; for no logs set logging_strategy='no'."),
    ],
}
"""Of transformers' settings those whose values it would follow into a run that learns nothing, or fail on late."""

_OTHER_DISTRIBUTION = (
    "draws completions from another distribution than the one they are scored under, so ratio and KL would be wrong "
    "from the first step. Sharpen the distribution with temperature, or cut it with top_p, top_k or min_p, instead."
)
_FIXED = {
    "repetition_penalty": ((1.0,), _OTHER_DISTRIBUTION),
    "remove_unused_columns": ((False, None), "would remove the columns that the reward functions need."),
    "auto_find_batch_size": (
        (False, None),
        "would make batches smaller, which then no longer hold whole groups of num_generations completions. Lower "
        "per_device_train_batch_size instead.",
    ),
    "label_smoothing_factor": (
        (0.0, None),
        "smooths the labels of supervised training; completions that the policy drew have none.",
    ),
    "neftune_noise_alpha": (
        (None,),
        "adds noise to the embeddings of the update alone, so completions would not be scored under the policy that "
        "drew them.",
    ),
    "use_liger_kernel": (
        (False, None),
        "would put kernels into the model that rollouts and the shared-prompt layout do not go through. The head is "
        "computed in chunks, so whole logits are not held without it either.",
    ),
}
"""Settings that allow only some values, the first of which an error names, and what any other would do."""


@functools.cache
def _types(config_class: type) -> dict[str, Any]:
    """Types to check by field; transformers accepts `None` for numbers of its own, and checks its switches itself."""
    inherited = {each.name for each in fields(TrainingArguments)}
    types = {
        name: declared | None if name in inherited else declared
        for name, declared in declared_types(config_class).items()
    }
    return types | _BOUNDS_OF_INHERITED


def check_values(config: Any) -> None:
    """Checks every setting by itself.

    Raises:
        ValueError: With the setting, its value and what to do.
    """
    check_settings(config, _types(type(config)))
    for name, (allowed, reason) in _FIXED.items():
        value = getattr(config, name)
        if value not in allowed:
            raise ValueError(f"{name}={value!r} {reason} Leave {name} at {allowed[0]!r}.")


def check_intervals(config: TrainingArguments) -> None:
    """Refuses intervals of steps that the Trainer would take for "never", or for "at every step".

    Raises:
        ValueError: With the setting, its value and what to do.
    """
    for what in ("save", "eval"):
        name, strategy = f"{what}_steps", f"{what}_strategy"
        value = getattr(config, name)
        value = -1 if value is None and what == "save" else value
        if getattr(config, strategy) == "steps" and value is not None and value <= 0:
            raise ValueError(
                f"{name} is {value}, with {strategy}='steps'. Set it to 1 or more (below 1: a share of all steps), or "
                f"{strategy}='no'."
            )


def check_output_dir(folder: str | None) -> None:
    """Refuses an output folder that has no name, is no text, or is a file.

    Raises:
        ValueError: With its name.
    """
    if folder == "":
        raise ValueError("output_dir is empty. Name the folder that the run is to write to.")
    if not isinstance(folder, str | os.PathLike | None):
        raise ValueError(
            f"output_dir is {folder!r}, a {type(folder).__name__}, expected a text. Name the folder to write to; in a "
            "yaml file, put a number in quotes."
        )
    if folder is not None and Path(folder).exists() and not Path(folder).is_dir():
        raise ValueError(f"output_dir {str(folder)!r} is a file. Name a folder that the run is to write to.")


def check_json(config: TrainingArguments) -> None:
    """Refuses dictionaries given as text that is not JSON.

    Raises:
        ValueError: With the setting and its value.
    """
    for name in config._VALID_DICT_FIELDS:
        text = getattr(config, name)
        if isinstance(text, str) and text.startswith("{"):
            try:
                json.loads(text)
            except json.JSONDecodeError as error:
                raise ValueError(f"{name} is not a valid JSON object ({error}): {text!r}.") from error
