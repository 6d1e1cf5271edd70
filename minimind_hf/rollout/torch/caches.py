# SPDX-License-Identifier: Apache-2.0
"""Caches of every kind that transformers has: keys and values, states of convolutions and recurrences, or several."""

import sys
from typing import Any

from torch import Tensor, nn
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionCacheLayerMixin
from transformers.utils import ModelOutput

from ...forward.introspection import cache_argument, unwrap

WINDOWED_MASKS = ("create_sliding_window_causal_mask", "create_chunked_causal_mask")


def new_cache(model: nn.Module) -> Cache | None:
    """Returns an empty cache; unset for models that make one of their own class in the first pass."""
    base = unwrap(model)
    if hasattr(base, "_supports_default_dynamic_cache") and not base._supports_default_dynamic_cache():
        return None
    cache = DynamicCache(config=base.config)
    if not _masks_by_windows(base):
        cache.layers = [_without_window(layer) for layer in cache.layers]
    return cache


def _masks_by_windows(model: nn.Module) -> bool:
    """Whether the code of a model hides what is outside of a window. Moshi's has a window in its config alone: a cache
    that follows the config would forget keys to which a pass without a cache attends."""
    modules = [sys.modules.get(parent.__module__) for parent in type(model).__mro__]
    return any(hasattr(module, name) for module in modules for name in WINDOWED_MASKS)


def _without_window(layer: Any) -> Any:
    return DynamicLayer() if type(layer) is DynamicSlidingWindowLayer else layer


def is_recurrent(model: nn.Module) -> bool:
    """Whether some of the model's layers keep a state that every token changes, padding too, instead of keys."""
    cache = new_cache(model)
    if cache is None or ModuleStates(model).places:
        return True
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in cache.layers)


class ModuleStates:
    """States that a model keeps in its modules instead of a cache, as RecurrentGemma does, as a part of a batch.

    Args:
        model (`nn.Module`): In whose modules they are put for a pass.
    """

    NAMES = ("conv1d_state", "recurrent_states")

    def __init__(self, model: nn.Module):
        self.places = [(module, name) for module in model.modules() for name in self.NAMES if name in vars(module)]
        self.states: list[Any] = [None] * len(self.places)

    def put(self) -> None:
        for (module, name), state in zip(self.places, self.states, strict=True):
            setattr(module, name, state)

    def take(self) -> None:
        self.states = [getattr(module, name) for module, name in self.places]
        for module, name in self.places:
            setattr(module, name, None)

    def select_rows(self, rows: Tensor) -> None:
        self.states = [None if state is None else state[rows] for state in self.states]


def cache_of(outputs: ModelOutput, model: nn.Module) -> Cache:
    """Returns the cache of a pass.

    Raises:
        ValueError: If the model has none whose rows could be selected.
    """
    cache = getattr(outputs, cache_argument(model), None)
    if not isinstance(cache, Cache):
        raise ValueError(
            f"{type(unwrap(model)).__name__} returned no cache of transformers' kind but {type(cache).__name__}, so "
            "the torch rollout engine cannot decode with it token by token. Pass a rollout engine of your own as "
            "`rollout_engine`."
        )
    return cache


def select_rows(cache: Cache, rows: Tensor) -> None:
    """Replaces row `i` of a cache by row `rows[i]`, in all its layers.

    transformers' `batch_select_indices` leaves states of recurrences where they are, or does not exist for them.
    """
    for layer in cache.layers:
        if isinstance(layer, LinearAttentionCacheLayerMixin):
            LinearAttentionCacheLayerMixin.reorder_cache(layer, rows)
        if hasattr(layer, "batch_select_indices"):
            layer.batch_select_indices(rows)
    states = getattr(cache, "linear_cache", [])  # of MiniMax; an empty list where a layer has none
    states[:] = [state[rows] if isinstance(state, Tensor) else state for state in states]


def why_not_parked(model: nn.Module) -> str | None:
    """Returns why a row of the model's cache cannot be taken out and continued later, or `None`."""
    if is_recurrent(model):
        return "some of its layers keep a state of all tokens instead of their keys, or it makes a cache of its own"
    others = sorted({type(layer).__name__ for layer in new_cache(model).layers if type(layer) is not DynamicLayer})
    if others:
        return f"its cache has layers that do not keep all keys ({', '.join(others)}), such as sliding windows"
    return None
