# SPDX-License-Identifier: Apache-2.0
"""Weights from a saved folder into a model that is already there, on its device and in its precision.

Through `from_pretrained`, since the names in a file need not be those of the modules (a mixture of experts saves one
tensor per expert and computes with one for all).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from peft import PeftModel, load_peft_weights, set_peft_model_state_dict
from torch import nn
from transformers import PreTrainedModel

from .adapters import POLICY_ADAPTER, belongs_to


@contextmanager
def writing_as_told() -> Iterator[None]:
    """`save_pretrained` writes in each process that calls it as the main one (see `save_on_each_node`).

    transformers lets the first process of all alone write, so that other machines would miss the weights.
    """
    name = "should_save_on_this_rank"
    owner = next(kind for kind in PreTrainedModel.__mro__ if name in vars(kind))
    original = vars(owner)[name]
    setattr(owner, name, lambda self, is_main_process: is_main_process)
    try:
        yield
    finally:
        setattr(owner, name, original)


def load_weights(model: PreTrainedModel | PeftModel, folder: str | Path) -> None:
    """Loads an ordinary model folder, or the adapter folder of a peft model.

    Raises:
        ValueError: If the folder does not hold exactly the weights that the model has.
    """
    if isinstance(model, PeftModel):
        load_adapter(model, folder, POLICY_ADAPTER)
        return
    loaded, info = type(model).from_pretrained(
        folder,
        config=model.config,
        dtype=torch.promote_types(model.dtype, torch.float32),  # narrower weights come back exactly
        ignore_mismatched_sizes=True,  # to name what is amiss: see `check_complete`
        output_loading_info=True,
    )
    check_complete(folder, info["missing_keys"], info["unexpected_keys"], info["mismatched_keys"])
    model.load_state_dict(loaded.state_dict())


def load_adapter(model: PeftModel, folder: str | Path, name: str) -> dict[str, torch.Tensor]:
    """Loads a saved adapter into the adapter `name`.

    Returns:
        `dict[str, Tensor]`: The folder's tensors outside the base model (such as a head), by their saved names.

    Raises:
        ValueError: If the folder does not hold exactly the weights that the adapter has.
    """
    saved = load_peft_weights(str(folder), device="cpu")
    heads = {key: saved.pop(key) for key in list(saved) if _is_head(key, model)}
    result = set_peft_model_state_dict(model, saved, adapter_name=name)
    trainable = {key for key, parameter in model.named_parameters() if parameter.requires_grad}
    missing = [key for key in result.missing_keys if belongs_to(key, name) and key in trainable]
    check_complete(folder, missing, result.unexpected_keys, [])
    return heads


def check_complete(folder: str | Path, missing, unexpected, mismatched) -> None:
    """Refuses a folder with other weights than the model's."""
    faults = {"missing": missing, "unexpected": unexpected, "of another shape": mismatched}
    found = "; ".join(f"{what}: {', '.join(map(str, sorted(keys)[:5]))}" for what, keys in faults.items() if keys)
    if found:
        raise ValueError(
            f"{folder} does not hold exactly the weights of this model ({found}). Load the folder that was saved by "
            "a run of the same model, with the same adapters if any."
        )


def without_tied(model: nn.Module, missing: Sequence[str]) -> list[str]:
    """Drops names whose tensor was loaded by another name (tied embeddings) from those that a file lacks."""
    owners = {name: id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False)}
    loaded = {owner for name, owner in owners.items() if name not in missing}
    return [name for name in missing if owners.get(name) not in loaded]


def _is_head(key: str, model: PeftModel) -> bool:
    """Whether a tensor of an adapter file belongs to a module that the base model does not have."""
    module = key.removeprefix("base_model.model.").split(".")[0]
    return not hasattr(model.get_base_model(), module)
