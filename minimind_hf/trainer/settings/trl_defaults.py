# SPDX-License-Identifier: Apache-2.0
"""trl's own defaults, for who comes from there: `GRPOConfig(defaults="trl")`.

They are read off the installed trl. A setting that the user passes always wins, whatever its value; which ones were
passed is noted when the settings are made.
"""

import functools
from collections.abc import Collection
from dataclasses import fields
from typing import Any

import trl
from transformers import TrainingArguments
from transformers.utils import logging

from .trl_fields import fields_without_effect, unsupported_fields

logger = logging.get_logger(__name__)

DEFAULTS = ("minimind", "trl")
# Of trl's settings those that users of MiniMind set, too. The others are marks of a script that was written for trl.
_COMMON = frozenset(
    [
        "num_generations",
        "beta",
        "loss_type",
        "epsilon",
        "epsilon_high",
        "model_init_kwargs",
        "trust_remote_code",
        "disable_dropout",
        "router_aux_loss_coef",
        "max_completion_length",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "generation_kwargs",
        "num_generations_eval",
        "chat_template_kwargs",
        "shuffle_dataset",
        "reward_weights",
        "log_completions",
        "num_completions_to_print",
        "log_unique_prompts",
        "remove_unused_columns",
        "max_tool_calling_iterations",
    ]
)
_LOSSES_OF_MINIMIND = ("cispo", "grpo")
_SETTLED_LATER = ("scale_rewards", "bf16", "gradient_checkpointing")  # what trl or this package makes of an unset one


@functools.cache
def _differing(config_class: type) -> dict[str, Any]:
    """The supported settings of trl with another default here, and trl's."""
    left_out = {*unsupported_fields(config_class), *fields_without_effect(config_class), *_SETTLED_LATER}
    ours = {each.name: each.default for each in fields(config_class)}
    theirs = {each.name: each.default for each in fields(trl.GRPOConfig) if each.name not in left_out}
    return {name: value for name, value in theirs.items() if ours[name] != value}


def trl_defaults(config_class: type, passed: Collection[str] = (), fp16: bool = False) -> dict[str, Any]:
    """trl's defaults where they differ from those here.

    Args:
        config_class (`type`): The settings here.
        passed (`Collection[str]`): Names of settings that the user set, which are left out.
        fp16 (`bool`): Whether the user chose fp16; without it trl trains in bf16.
    """
    found = {**_differing(config_class), "bf16": not fp16, "activation_checkpointing": True, "thinking_ratio": 0.0}
    if "gradient_checkpointing" in passed:
        del found["activation_checkpointing"]  # they are one setting under two names
    return {name: value for name, value in found.items() if name not in passed}


def take_trl_defaults(config: Any) -> None:
    """Gives every setting that was not passed trl's default, if `defaults` says so."""
    if config.defaults == "trl":
        for name, value in trl_defaults(type(config), config.passed, config.fp16).items():
            setattr(config, name, value)


def say_other_defaults(config: Any) -> None:
    """Says once which of trl's defaults differ and were not set, where the settings are those of a script for trl."""
    if config.defaults is not None or config.process_index > 0 or not (marks := _marks_of_trl(config)):
        return
    unset = trl_defaults(type(config), config.passed, config.fp16).items()
    differing = ", ".join(
        f"{name} {_now(config, name)!r} (trl: {value!r})" for name, value in unset if _now(config, name) != value
    )
    if differing:
        logger.warning_once(
            f"The settings look like those of a script for trl ({', '.join(marks)}). Some defaults differ here, and "
            f"were not set: {differing}. defaults='trl' takes trl's, defaults='minimind' keeps these and says nothing."
        )


def _now(config: Any, name: str) -> Any:
    value = getattr(config, name)
    return getattr(value, "value", value)


def _marks_of_trl(config: Any) -> list[str]:
    inherited = {each.name for each in fields(TrainingArguments)}
    own = [each.name for each in fields(trl.GRPOConfig) if each.name not in inherited | _COMMON]
    marks = [name for name in own if name in config.passed]
    if "loss_type" in config.passed and config.loss_type not in _LOSSES_OF_MINIMIND and ":" not in config.loss_type:
        marks.append(f"loss_type={config.loss_type!r}")
    return marks
