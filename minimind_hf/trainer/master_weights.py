# SPDX-License-Identifier: Apache-2.0
"""The float32 weights that DeepSpeed updates where the model computes with narrower copies of them.

The Trainer would save the copies, from which updates as small as those of RL are rounded away.
"""

import json
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers.utils import CONFIG_NAME


@torch.no_grad()
def with_master_weights(model: nn.Module, weights: dict[str, Tensor] | None) -> dict[str, Tensor] | None:
    """Puts them in the place of the copies; every process calls it.

    Args:
        model (`nn.Module`): Unwrapped, trained by DeepSpeed.
        weights (`dict[str, Tensor]`, *optional*): Gathered, in the processes that write.

    Returns:
        `dict[str, Tensor]` or `None`: As `weights`, trained ones in float32.
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
    """Has a saved model loaded in the precision of its weights, not in that in which it was computed with."""
    path = Path(folder) / CONFIG_NAME
    if weights is None or not path.exists() or not any(tensor.dtype == torch.float32 for tensor in weights.values()):
        return
    config = json.loads(path.read_text(encoding="utf-8"))
    if config.get("dtype") != "float32":
        path.write_text(json.dumps(config | {"dtype": "float32"}, indent=2, sort_keys=True) + "\n", encoding="utf-8")
