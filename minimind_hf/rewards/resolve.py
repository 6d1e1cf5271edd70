# SPDX-License-Identifier: Apache-2.0
"""From what a user may pass as a reward function to a callable with a name.

A string is tried as the name of a built-in reward, then as an import path if it contains a colon (`module:name` or
`file.py:name`), then as the folder or hub name of a reward model.
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ..import_paths import ImportPathError, is_import_path, load_object
from .builtin import BUILT_IN_REWARDS, built_in_reward, similar_name
from .errors import RewardError
from .model import RewardModel, RewardModelError

RewardFunction = Callable[..., Any]

_LOADING_ARGUMENTS = ("trust_remote_code", "device", "dtype")


def resolve_reward(
    spec: str | RewardFunction | torch.nn.Module,
    tokenizer: PreTrainedTokenizerBase | None = None,
    model_kwargs: dict[str, Any] | None = None,
) -> RewardFunction:
    """Turns a specification into a reward function.

    Args:
        spec (`str`, `Callable` or `PreTrainedModel`): See above. A callable is returned unchanged.
        tokenizer (`PreTrainedTokenizerBase`, *optional*):
            The tokenizer of a reward model, given by its name or as a model. Unset: the one of the model's path.
        model_kwargs (`dict`, *optional*): Arguments for [`RewardModel`] if the specification is a model.

    Returns:
        `Callable`: The reward function.

    Raises:
        RewardError: If there is no such function or model.
    """
    if isinstance(spec, str):
        return _from_string(spec, tokenizer, model_kwargs or {})
    if isinstance(spec, torch.nn.Module) and hasattr(spec, "config"):
        return _from_model(spec, tokenizer, model_kwargs or {})
    if isinstance(spec, type) or not callable(spec):
        hint = "an instance of it" if isinstance(spec, type) else "a function, a callable object, a string or a model"
        raise RewardError(f"{spec!r} is not a reward function. Give {hint}.")
    return spec


def unique_names(functions: Sequence[RewardFunction]) -> list[str]:
    """Returns a name for each function. A name that is taken gets a number.

    Args:
        functions (`Sequence[Callable]`): The reward functions.

    Returns:
        `list[str]`: The names, in the same order.
    """
    names: list[str] = []
    for function in functions:
        name = base = _name(function)
        number = 1
        while name in names:
            number += 1
            name = f"{base}_{number}"
        names.append(name)
    return names


def _name(function: RewardFunction) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None) or getattr(function, "name", None)
    if not isinstance(name, str) or not name:
        name = type(function).__name__
    return "lambda" if name == "<lambda>" else name


def _from_string(spec: str, tokenizer: PreTrainedTokenizerBase | None, model_kwargs: dict[str, Any]) -> RewardFunction:
    if (function := built_in_reward(spec)) is not None:
        return function
    if is_import_path(spec):
        return _import(spec)
    if not Path(spec).exists() and (meant := similar_name(spec)):  # asking the hub would take a minute
        raise RewardError(
            f"{spec!r} is not a built-in reward ({', '.join(BUILT_IN_REWARDS)}). Did you mean {meant!r}? For a reward "
            "model give its folder, or 'owner/name' on the hub."
        )
    try:
        return RewardModel.from_pretrained(spec, tokenizer=tokenizer, **model_kwargs)
    except RewardModelError as error:
        raise RewardError(
            f"{spec!r} is neither a built-in reward ({', '.join(BUILT_IN_REWARDS)}) nor an import path ('module:name' "
            f"or 'file.py:name') nor a reward model that can be used: {error}"
        ) from error


def _from_model(
    model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase | None, model_kwargs: dict[str, Any]
) -> RewardModel:
    if tokenizer is None:
        path = getattr(model.config, "_name_or_path", "")
        try:
            tokenizer = AutoTokenizer.from_pretrained(path)
        except (OSError, ValueError, ImportError) as error:
            raise RewardError(
                f"The reward model {type(model).__name__} was passed without a tokenizer, and none could be loaded "
                f"from its path {path!r} ({type(error).__name__}: {error}). Pass it in processing_classes, or to a "
                "trainer in reward_processing_classes."
            ) from error
    # Device and dtype of a model that is passed as an object are those it has.
    options = {key: value for key, value in model_kwargs.items() if key not in _LOADING_ARGUMENTS}
    return RewardModel(model, tokenizer, **options)


def _import(spec: str) -> RewardFunction:
    try:
        function = load_object(spec)
    except ImportPathError as error:
        raise RewardError(str(error)) from error
    if isinstance(function, type) or not callable(function):
        raise RewardError(f"{spec!r} is a {type(function).__name__}. Name a function or a callable object.")
    return function
