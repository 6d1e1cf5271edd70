# SPDX-License-Identifier: Apache-2.0
"""MiniMind as an architecture of transformers, and conversion to and from it. Importing registers the Auto classes.

It imports torch and transformers (conversion also `paths`), because saved folders carry the configuration and the
model as remote code. A change of the architecture belongs in `configuration_minimind` and `modeling_minimind`, of
MiniMind's own files in `pth`, of what Qwen3 calls the same in `qwen3`, and of folders and commands in `convert`.
"""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from .configuration_minimind import MiniMindConfig
from .modeling_minimind import (
    MiniMindForCausalLM,
    MiniMindForSequenceClassification,
    MiniMindForTokenClassification,
    MiniMindModel,
    router_load_balancing_loss,
)

_AUTO_CLASSES = {
    AutoModel: MiniMindModel,
    AutoModelForCausalLM: MiniMindForCausalLM,
    AutoModelForSequenceClassification: MiniMindForSequenceClassification,
    AutoModelForTokenClassification: MiniMindForTokenClassification,
}


def register() -> None:
    """Makes the Auto classes know MiniMind and saved folders carry its code. Calling it again changes nothing."""
    AutoConfig.register(MiniMindConfig.model_type, MiniMindConfig, exist_ok=True)
    MiniMindConfig.register_for_auto_class()
    for auto_class, model_class in _AUTO_CLASSES.items():
        auto_class.register(MiniMindConfig, model_class, exist_ok=True)
        model_class.register_for_auto_class(auto_class.__name__)


register()

__all__ = [
    "MiniMindConfig",
    "MiniMindForCausalLM",
    "MiniMindForSequenceClassification",
    "MiniMindForTokenClassification",
    "MiniMindModel",
    "register",
    "router_load_balancing_loss",
]
