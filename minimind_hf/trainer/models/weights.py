# SPDX-License-Identifier: Apache-2.0
"""Loads weights from a saved folder into a model in memory, and prepares weights for saving.

Loading uses `from_pretrained`, since names in a file can differ from those of the modules (a mixture of experts saves
one tensor per expert and computes with a single one). If the model computes in reduced precision, DeepSpeed updates
float32 master weights. These are saved, since updates as small as those of RL vanish by rounding in the narrow copies.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from peft import PeftModel, load_peft_weights, set_peft_model_state_dict
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.trainer_utils import get_last_checkpoint
from transformers.utils import CONFIG_NAME

from .adapters import POLICY_ADAPTER, belongs_to


@contextmanager
def saving_where_called() -> Iterator[None]:
    """Makes `save_pretrained` write in every process that calls it with `is_main_process` (see `save_on_each_node`).

    transformers writes only in the first process of all, so the weights would be missing on other machines.
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
        ValueError: If the folder does not hold exactly the weights of the model.
    """
    if isinstance(model, PeftModel):
        load_adapter(model, folder, POLICY_ADAPTER)
        return
    loaded, info = type(model).from_pretrained(
        folder,
        config=model.config,
        dtype=torch.promote_types(model.dtype, torch.float32),  # narrower weights are restored exactly
        ignore_mismatched_sizes=True,  # so that `check_complete` can report all differences
        output_loading_info=True,
    )
    check_complete(folder, info["missing_keys"], info["unexpected_keys"], info["mismatched_keys"])
    model.load_state_dict(loaded.state_dict())


def load_adapter(model: PeftModel, folder: str | Path, name: str) -> dict[str, torch.Tensor]:
    """Loads a saved adapter into the adapter `name`.

    Returns:
        `dict[str, Tensor]`: Tensors of the folder that are not part of the base model (such as a head), by saved name.

    Raises:
        ValueError: If the folder does not hold exactly the weights of the adapter.
    """
    saved = load_peft_weights(str(folder), device="cpu")
    heads = {key: saved.pop(key) for key in list(saved) if _is_head(key, model)}
    result = set_peft_model_state_dict(model, saved, adapter_name=name)
    trainable = {key for key, parameter in model.named_parameters() if parameter.requires_grad}
    missing = [key for key in result.missing_keys if belongs_to(key, name) and key in trainable]
    check_complete(folder, missing, result.unexpected_keys, [])
    return heads


def check_complete(folder: str | Path, missing, unexpected, mismatched) -> None:
    """Refuses a folder whose weights differ from the model's in name or shape."""
    faults = {"missing": missing, "unexpected": unexpected, "wrong shape": mismatched}
    found = "; ".join(f"{what}: {', '.join(map(str, sorted(keys)[:5]))}" for what, keys in faults.items() if keys)
    if found:
        raise ValueError(
            f"{folder} does not hold exactly the weights of this model ({found}). Load the folder that was saved by "
            "a run of the same model, with the same adapters if any."
        )


def without_tied(model: nn.Module, missing: Sequence[str]) -> list[str]:
    """Drops names from `missing` whose tensor was loaded under another name (tied embeddings)."""
    owners = {name: id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False)}
    loaded = {owner for name, owner in owners.items() if name not in missing}
    return [name for name in missing if owners.get(name) not in loaded]


def _is_head(key: str, model: PeftModel) -> bool:
    """Whether a tensor of an adapter file belongs to a module that the base model does not have."""
    module = key.removeprefix("base_model.model.").split(".")[0]
    return not hasattr(model.get_base_model(), module)


@torch.no_grad()
def with_master_weights(model: nn.Module, weights: dict[str, Tensor] | None) -> dict[str, Tensor] | None:
    """Replaces the narrow copies by the float32 master weights; every process calls it.

    Args:
        model (`nn.Module`): The unwrapped model, trained by DeepSpeed.
        weights (`dict[str, Tensor]`, *optional*): Gathered weights, in the processes that write.

    Returns:
        `dict[str, Tensor]` or `None`: `weights`, with trained weights in float32.
    """
    from deepspeed.utils import safe_get_full_fp32_param

    masters = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype in (torch.bfloat16, torch.float16):
            whole = safe_get_full_fp32_param(parameter)
            if weights is not None and whole is not None:
                masters[name] = whole.detach().cpu()
    return weights if weights is None else weights | masters


def declare_float32(folder: str | Path, weights: dict[str, Tensor] | None) -> None:
    """Declares float32 in a saved config if the weights are float32, whatever precision the model computed in."""
    path = Path(folder) / CONFIG_NAME
    if weights is None or not path.exists() or not any(tensor.dtype == torch.float32 for tensor in weights.values()):
        return
    config = json.loads(path.read_text(encoding="utf-8"))
    if config.get("dtype") != "float32":
        path.write_text(json.dumps(config | {"dtype": "float32"}, indent=2, sort_keys=True) + "\n", encoding="utf-8")


class NotFiniteError(RuntimeError):
    """A loss, gradient or weight is NaN or infinite."""


def check_finite(policy: nn.Module, step: int, output_dir: str, cause: Exception) -> None:
    """Checks whether an error of a rollout comes from the policy's weights rather than from the engine.

    Args:
        policy (`nn.Module`): The policy whose weights are checked.
        step (`int`): The step of the rollout, counted from 1.
        output_dir (`str`): Folder of the checkpoints.
        cause (`Exception`): The error of the rollout.

    Raises:
        NotFiniteError: From `cause`, if a weight is NaN or infinite.
    """
    name = next((name for name, weights in policy.named_parameters() if not weights.isfinite().all()), None)
    if name is None:
        return
    checkpoint = get_last_checkpoint(output_dir) if Path(output_dir).is_dir() else None
    before = f"{checkpoint}, or an earlier one" if checkpoint else "the initial model"
    raise NotFiniteError(
        f"step {step}: The policy's weights are not finite: {name} holds NaN or infinite values, so nothing can "
        f"be sampled. Try: lower learning_rate; or use bf16 rather than fp16; and continue from finite weights: "
        f"{before}."
    ) from cause
