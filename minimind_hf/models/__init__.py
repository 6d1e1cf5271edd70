# SPDX-License-Identifier: Apache-2.0
"""MiniMind as an architecture of transformers, and conversion to and from it.

Importing this room registers MiniMind with the Auto classes, and imports neither torch nor transformers for that. A
change of the architecture belongs in `configuration_minimind` and `modeling_minimind`, which saved folders carry as
remote code and which therefore import nothing of the project; of MiniMind's own files in `pth`, of what Qwen3 calls
the same in `qwen3`, and of folders in `convert`.
"""

from typing import TYPE_CHECKING

from ..lazy import lazy
from .registration import register

if TYPE_CHECKING:
    from .configuration_minimind import MiniMindConfig
    from .modeling_minimind import (
        MiniMindForCausalLM,
        MiniMindForSequenceClassification,
        MiniMindForTokenClassification,
        MiniMindModel,
        router_load_balancing_loss,
    )

_LAZY = {
    "MiniMindConfig": ".configuration_minimind",
    "MiniMindForCausalLM": ".modeling_minimind",
    "MiniMindForSequenceClassification": ".modeling_minimind",
    "MiniMindForTokenClassification": ".modeling_minimind",
    "MiniMindModel": ".modeling_minimind",
    "router_load_balancing_loss": ".modeling_minimind",
}

__all__ = [
    "MiniMindConfig",
    "MiniMindForCausalLM",
    "MiniMindForSequenceClassification",
    "MiniMindForTokenClassification",
    "MiniMindModel",
    "register",
    "router_load_balancing_loss",
]

__getattr__, __dir__ = lazy(__name__, _LAZY)


register()
