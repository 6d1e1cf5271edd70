# SPDX-License-Identifier: Apache-2.0
"""The fields of trl's GRPOConfig that have no counterpart here, each with what to use instead.

They exist so that a trl script, a yaml file or a command line that spells out trl's defaults runs unchanged. Any other
value is refused by name: nothing that a user asks for is ignored. A few that change no number here are accepted, and
the user is told so. docs/migrate-from-trl.md lists all fields.

Which fields these are follows from the installed trl: those of its GRPOConfig that are not declared here.
"""

from collections.abc import Callable
from dataclasses import MISSING, Field, field, fields
from typing import Any, get_type_hints

import torch
from transformers import PreTrainedModel
from transformers.utils import logging

logger = logging.get_logger(__name__)

_SGLANG = 'Rollouts come from the trainer\'s own process, or with rollout_engine="sglang" from a server.'
_VLLM = f"There is no vLLM engine. {_SGLANG}"
_REFILL = "The torch engine fills the place of a completion that ends with the next one by itself; see max_batch_rows."
_INSTEAD = {  # by name, or by what names begin with
    "cache_implementation": "The torch engine has its own cache, allocated once for a rollout.",
    "use_vllm": _VLLM,
    "vllm_": _VLLM,
    "vllm_structured_outputs_": "A constrained completion is drawn from another distribution than the one it is "
    "scored under.",
    "vllm_server_": f"{_VLLM} Its address is sglang_base_url.",
    "vllm_enable_sleep_mode": f"{_VLLM} The setting of a server on the trainer's GPU is sglang_enable_sleep_mode.",
    "vllm_server_timeout": f"{_VLLM} How long to wait for it is server_timeout.",
    "vllm_importance_sampling_": "The ratio is taken to the log-probabilities that the engine sampled with, which "
    "absorbs what trl corrects for here; see rollout_correction for more.",
    "log_multimodal": "Completions are text.",
    "log_completions_hub_repo": "log_completions writes OUTPUT_DIR/completions as jsonl; upload the folder with "
    "`hf upload`.",
    "use_transformers_": _REFILL,
    "transformers_continuous_batching_": _REFILL,
}
_WITHOUT_EFFECT = {
    "cast_lm_head_to_fp32": "The head is in float32 like the rest of the model, unless model_init_kwargs loads it in "
    "another dtype, which is then refused.",
    "ds3_gather_for_generation": "The torch engine always gathers the weights; where they do not fit into one device, "
    "use a rollout server.",
    "pad_to_multiple_of": "The default layout does not pad, and padding changes no number.",
}
_NOTHING_INSTEAD = "It has no counterpart here."
_NOT_SUPPORTED = "Of trl, not supported. "
_ACCEPTED = "Of trl, accepted without effect. "


def what_instead(name: str) -> str:
    """What to use instead of a field of trl: by its name, or else by the longest beginning that is known."""
    known = [key for key in _INSTEAD if name == key or key.endswith("_") and name.startswith(key)]
    return _INSTEAD[max(known, key=len)] if known else _NOTHING_INSTEAD


def takes_fields_of(trl_config: type) -> Callable[[type], type]:
    """A decorator, to stand below `@dataclass`, that declares the fields of trl which the class does not have yet."""

    def declare(config: type) -> type:
        inherited = {name for base in config.__mro__ for name in vars(base).get("__dataclass_fields__", ())}
        ours, types = {*config.__annotations__, *inherited}, get_type_hints(trl_config)
        added = [each for each in fields(trl_config) if each.name not in ours]
        for each in added:
            setattr(config, each.name, _copied(each))
        # trl's types do not always admit trl's own default
        admitted = {each.name: types[each.name] | None if each.default is None else types[each.name] for each in added}
        config.__annotations__ = config.__annotations__ | admitted
        return config

    return declare


def _copied(original: Field) -> Field:
    why = _WITHOUT_EFFECT.get(original.name)
    metadata = {"help": _ACCEPTED + why if why else _NOT_SUPPORTED + what_instead(original.name)}
    if original.default is MISSING:
        return field(default_factory=original.default_factory, metadata=metadata)
    return field(default=original.default, metadata=metadata)


def unsupported_fields(config: type) -> dict[str, Any]:
    """The fields of trl that a config knows but does not support, with their defaults."""
    return {each.name: _default(each) for each in fields(config) if _help(each).startswith(_NOT_SUPPORTED)}


def fields_without_effect(config: type) -> dict[str, tuple[Any, str]]:
    """The fields of trl that a config takes though they change no number here: `{name: (default, why)}`."""
    return {
        each.name: (_default(each), _help(each).removeprefix(_ACCEPTED))
        for each in fields(config)
        if _help(each).startswith(_ACCEPTED)
    }


def _default(declared: Field) -> Any:
    return declared.default_factory() if declared.default is MISSING else declared.default


def _help(declared: Field) -> str:
    return declared.metadata.get("help", "")


def say_without_effect(config: Any) -> None:
    """Says once which fields were set though they change nothing."""
    for name, (default, why) in fields_without_effect(type(config)).items():
        if getattr(config, name) != default:
            logger.warning_once(f"{name}={getattr(config, name)!r} is accepted without effect. {why}")


def check_head_dtype(config: Any, policy: PreTrainedModel) -> None:
    """Refuses `cast_lm_head_to_fp32` where it would have had an effect: on a model in another precision.

    Raises:
        ValueError: With the dtype, and what to do.
    """
    head = policy.get_output_embeddings()
    if config.cast_lm_head_to_fp32 and head is not None and head.weight.dtype != torch.float32:
        raise ValueError(
            f"cast_lm_head_to_fp32=True asks for a head in float32, but the model is loaded in {head.weight.dtype}. "
            "Load it in float32 (leave dtype out of model_init_kwargs) and set bf16=True for the rest of the "
            "computation, or leave cast_lm_head_to_fp32 at False."
        )


def refuse_unsupported(config: Any) -> None:
    """Refuses every value of an unsupported field but trl's default.

    Raises:
        ValueError: With the field, its value and what to use instead.
    """
    for name, default in unsupported_fields(type(config)).items():
        value = getattr(config, name)
        if value != default:
            raise ValueError(
                f"{name}={value!r} is a setting of trl that is not supported here. {what_instead(name)} "
                f"Leave {name} out (trl's default, {default!r}, is accepted)."
            )
