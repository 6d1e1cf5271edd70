# SPDX-License-Identifier: Apache-2.0
"""Whether a resumed run meets its prompts where the stopped one left off.

The place in the data is a number of optimizer steps. With other prompts, another seed or another batch size, that
number leads to another place, so this is said; so is a checkpoint after whose step there is nothing left to train.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerState
from transformers.utils import logging

from ...data.streams import PromptStream
from ..settings.base import RLConfig

logger = logging.get_logger(__name__)

_LOOKED_AT = 32  # prompts, evenly spaced
REFERENCE = "fingerprint of the reference"


def data_order(args: RLConfig, prompts: Any) -> dict[str, Any]:
    """What decides which prompts an optimizer step trains on, for a checkpoint.

    Args:
        args ([`RLConfig`]): Settings.
        prompts: The train dataset; of a stream, the first prompts are looked at.
    """
    order = {
        "seed": args.seed,
        "shuffle_dataset": args.shuffle_dataset,
        "prompts of a rollout, over all processes": args.prompts_per_rollout * args.world_size,
        "optimizer steps of a rollout": args.micro_batches_per_rollout / args.gradient_accumulation_steps,
    }
    if isinstance(prompts, PromptStream):
        return {"digest of the first prompts": _digest(prompts.first_prompts), **order}
    step = max(1, len(prompts) // _LOOKED_AT)
    looked_at = (prompts[number]["prompt"] for number in range(0, len(prompts), step))
    return {"number of prompts": len(prompts), "digest of the prompts": _digest(looked_at), **order}


def _digest(prompts: Iterable[Any]) -> str:
    texts = [_last_turn(prompt) for prompt in prompts]
    return hashlib.sha256(json.dumps(texts, default=str).encode()).hexdigest()[:16]


def _last_turn(prompt: Any) -> Any:
    """What no choice of an epoch changes, as a system prompt at random would."""
    return prompt if isinstance(prompt, str) else prompt[-1]


def warn_of_other_order(folder: str | Path, saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Says what has changed since a checkpoint was written that moves the place in the data.

    Args:
        folder (`str` or `Path`): The checkpoint.
        saved (`Mapping`): What [`data_order`] was then; empty for checkpoints of earlier versions.
        own (`Mapping`): What it is now.
    """
    changed = [f"{name}: {saved[name]}, now {own[name]}" for name in own if saved.get(name, own[name]) != own[name]]
    if changed:
        logger.warning(
            "%s was written by a run that drew its prompts in another order (%s). The resumed run continues at the "
            "same number of optimizer steps, so some prompts come twice in an epoch and others not at all. Resume "
            "with the data and settings of the run, or start from the folder as a model (--model_name_or_path).",
            folder,
            "; ".join(changed),
        )


def warn_of_other_reference(
    folder: str | Path, saved: str | None, own: str | None, what: str = "reference (of the KL penalty)"
) -> None:
    """Says that a resumed run makes its reference of another model than the one that it began with.

    Args:
        folder (`str` or `Path`): The checkpoint.
        saved (`str`, *optional*), own (`str`, *optional*): Fingerprints of the references; unset where there is none.
        what (`str`): What the reference is.
    """
    if saved is not None and own is not None and saved != own:
        logger.warning(
            "%s was written by a run whose %s has other weights than the model given now. The policy comes from the "
            "checkpoint, the %s does not: pass the model that the run began with.",
            folder,
            what,
            what.split(" ")[0],
        )


def warn_if_nothing_is_left(folder: str | Path, state: TrainerState) -> None:
    """Says that a run resumes at or after its last step."""
    if state.global_step >= state.max_steps:
        logger.warning(
            "There is nothing left to train: %s is of step %d, and this run has %d (max_steps, or num_train_epochs "
            "and the number of prompts). Raise max_steps or num_train_epochs to train further.",
            folder,
            state.global_step,
            state.max_steps,
        )
