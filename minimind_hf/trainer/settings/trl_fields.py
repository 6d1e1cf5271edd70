# SPDX-License-Identifier: Apache-2.0
"""The fields of trl's GRPOConfig that have no counterpart here, each with what to use instead.

They exist so that a trl script, a yaml file or a command line that spells out trl's defaults runs as it is. Any other
value is refused by name: nothing that a user asks for is ignored. docs/migrate-from-trl.md lists all fields.
"""

from dataclasses import Field, dataclass, field, fields
from typing import Any

_SGLANG = 'Rollouts come from the trainer\'s own process, or with rollout_engine="sglang" from a server.'
_VLLM = f"There is no vLLM engine. {_SGLANG}"
_MISMATCH = (
    "The ratio is taken to the log-probabilities that the engine sampled with, which absorbs what trl corrects for "
    "here; see rollout_correction for more."
)
_OTHER_LOSSES = 'The losses are "cispo", "grpo", "dr_grpo", "dapo" and "bnpo".'
_CONTROLLER = "The weight of the entropy bonus is a constant: set entropy_coef."
_REFILL = "The torch engine fills the place of a completion that ends with the next one by itself; see max_batch_rows."


_NOT_SUPPORTED = "Of trl, not supported. "


def _unsupported(default: Any, instead: str) -> Any:
    return field(default=default, metadata={"help": _NOT_SUPPORTED + instead})


def what_instead(unsupported: Field) -> str:
    """What to use instead of a field of [`UnsupportedTrlFields`]."""
    return unsupported.metadata["help"].removeprefix(_NOT_SUPPORTED)


@dataclass
class UnsupportedTrlFields:
    """Takes trl's defaults and refuses everything else. See the help of each field for what to use instead."""

    cast_lm_head_to_fp32: bool = _unsupported(
        False,
        "Models are loaded in float32 unless model_init_kwargs says otherwise, and the softmax is always in float32.",
    )
    ds3_gather_for_generation: bool = _unsupported(
        True, "The torch engine decodes with whole weights; where they do not fit, use a rollout server."
    )
    pad_to_multiple_of: int | str | None = _unsupported(
        "auto", 'The default layout does not pad; forward_layout="padded" pads to the longest of the micro-batch.'
    )
    cache_implementation: str | None = _unsupported(
        None, "The torch engine has a cache of its own, allocated once for a rollout."
    )

    use_vllm: bool = _unsupported(False, _VLLM)
    vllm_mode: str = _unsupported("colocate", _VLLM)
    vllm_model_impl: str = _unsupported("vllm", _VLLM)
    vllm_enable_sleep_mode: bool = _unsupported(False, _VLLM)
    vllm_structured_outputs_regex: str | None = _unsupported(
        None, "A constrained completion is drawn from another distribution than the one it is scored under."
    )
    vllm_server_base_url: str | None = _unsupported(None, f"{_VLLM} Its address is sglang_base_url.")
    vllm_server_host: str = _unsupported("0.0.0.0", f"{_VLLM} Its address is sglang_base_url.")
    vllm_server_port: int = _unsupported(8000, f"{_VLLM} Its address is sglang_base_url.")
    vllm_server_timeout: float = _unsupported(240.0, f"{_VLLM} How long it is waited for is server_timeout.")
    vllm_group_port: int = _unsupported(51216, _VLLM)
    vllm_gpu_memory_utilization: float = _unsupported(0.3, _VLLM)
    vllm_max_model_length: int | None = _unsupported(None, _VLLM)
    vllm_tensor_parallel_size: int = _unsupported(1, _VLLM)
    vllm_importance_sampling_correction: bool = _unsupported(True, _MISMATCH)
    vllm_importance_sampling_mode: str = _unsupported("sequence_mask", _MISMATCH)
    vllm_importance_sampling_clip_max: float | None = _unsupported(3.0, _MISMATCH)
    vllm_importance_sampling_clip_min: float | None = _unsupported(None, _MISMATCH)
    vllm_importance_sampling_cap: float | None = _unsupported(None, _MISMATCH)

    sapo_temperature_neg: float = _unsupported(1.05, _OTHER_LOSSES)
    sapo_temperature_pos: float = _unsupported(1.0, _OTHER_LOSSES)
    vespo_k_pos: float = _unsupported(2.0, _OTHER_LOSSES)
    vespo_lambda_pos: float = _unsupported(3.0, _OTHER_LOSSES)
    vespo_k_neg: float = _unsupported(3.0, _OTHER_LOSSES)
    vespo_lambda_neg: float = _unsupported(2.0, _OTHER_LOSSES)

    use_adaptive_entropy: bool = _unsupported(False, _CONTROLLER)
    entropy_coef_min: float = _unsupported(0.0, _CONTROLLER)
    entropy_coef_max: float = _unsupported(1.0, _CONTROLLER)
    entropy_coef_delta: float = _unsupported(0.005, _CONTROLLER)
    entropy_target: float = _unsupported(0.2, _CONTROLLER)

    max_tool_calling_iterations: int | None = _unsupported(
        None, "Turns with tools are the business of a rollout engine of your own, which marks them in loss_mask."
    )
    log_multimodal: bool = _unsupported(True, "Completions are text.")
    log_completions_hub_repo: str | None = _unsupported(
        None, "log_completions writes OUTPUT_DIR/completions as jsonl; upload the folder with `hf upload`."
    )
    use_transformers_continuous_batching: bool = _unsupported(False, _REFILL)
    transformers_continuous_batching_config: dict | str | None = _unsupported(None, _REFILL)
    use_transformers_paged: bool = _unsupported(False, _REFILL)

    def _refuse_unsupported(self) -> None:
        for each in fields(UnsupportedTrlFields):
            value = getattr(self, each.name)
            if value != each.default:
                raise ValueError(
                    f"{each.name}={value!r} is a setting of trl that is not supported here. "
                    f"{what_instead(each)} Leave {each.name} out (trl's default, {each.default!r}, is accepted)."
                )


UNSUPPORTED_OBJECTS = {
    "tools": "Turns with tools are the business of a rollout engine: pass rollout_engine, an object that marks the "
    "tokens of a tool's answer in Rollout.loss_mask.",
    "rollout_func": "Pass rollout_engine instead, an object with generate() and sync_weights().",
    "environment_factory": "An environment is the business of a rollout engine: pass rollout_engine, an object with "
    "generate() and sync_weights().",
}
"""Arguments of trl's GRPOTrainer that have no counterpart, and what to pass instead."""


def refuse_objects(**given: Any) -> None:
    """Refuses arguments of trl's trainer that would otherwise be left without effect.

    Raises:
        ValueError: If one of them is given.
    """
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"{name} is an argument of trl's GRPOTrainer that is not supported here. {UNSUPPORTED_OBJECTS[name]}"
            )
