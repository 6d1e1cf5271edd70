# SPDX-License-Identifier: Apache-2.0
"""What a causal LM's `forward` accepts.

Architectures differ in a few optional arguments (ALiBi models take no `position_ids`, older code names its cache
`past_key_values`). Whoever calls a model of any architecture asks here first.
"""

import inspect

from torch import nn


def unwrap(model: nn.Module) -> nn.Module:
    """Returns the transformers model inside wrappers (DDP, DeepSpeed engine, peft)."""
    while hasattr(model, "module"):
        model = model.module
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def forward_arguments(model: nn.Module) -> frozenset[str]:
    """Returns the names of the arguments that the model's `forward` declares."""
    # Of the class, not of the instance: accelerate replaces the instance's `forward` by a wrapper under autocast.
    return frozenset(inspect.signature(type(unwrap(model)).forward).parameters)


def cache_argument(model: nn.Module) -> str:
    """Returns the name under which `forward` takes the key/value cache (`cache`, formerly `past_key_values`).

    Raises:
        ValueError: If the model takes no cache at all.
    """
    accepted = forward_arguments(model)
    for name in ("cache", "past_key_values"):
        if name in accepted:
            return name
    raise ValueError(
        f"{type(unwrap(model)).__name__}.forward takes neither `cache` nor `past_key_values`, so the torch rollout "
        "engine cannot decode with it token by token. Pass a rollout engine of your own as `rollout_engine`."
    )
