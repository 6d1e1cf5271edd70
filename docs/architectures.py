# SPDX-License-Identifier: Apache-2.0
"""Every causal LM of the installed transformers, made tiny on a CPU and given one step of training.

`python docs/architectures.py` writes architectures.json, from which docs/generate.py makes the table of models.md.
What cannot be made tiny by these sizes alone is listed as not tried; what the trainer refuses, with its reason.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

RESULTS = Path(__file__).with_name("architectures.json")
MOST_PARAMETERS = 5_000_000

SIZES = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "model_dim", "embedding_size", "lru_width"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "decoder_ffn_dim", "encoder_ffn_dim", "d_ff"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "num_key_value_heads"), 4),
    **dict.fromkeys(("head_dim", "d_kv", "rotary_dim", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "state_size", "mamba_d_state", "mamba_dt_rank"), 8),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace", "mamba_n_groups"), 1),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("mamba_chunk_size", "chunk_size", "mamba_n_heads", "mamba_d_head"), 8),
    **dict.fromkeys(("linear_num_value_heads", "linear_num_key_heads"), 4),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "hidden_size_per_layer_input"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"), 64),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 259),
    "sliding_window": 8,  # so that windows hide something
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

FURTHER = {
    "deepseek_v2": {"num_experts_per_tok": 2},  # what has no default
    # One layer of each kind: two of the first kind alone would have no attention
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "nemotron_h": {"layer_types": ["linear_attention", "full_attention"]},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"]},
}


def causal_lms() -> dict[str, str]:
    """Returns the class of every model type of transformers that has a causal LM: without our own, once registered."""
    kinds = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return {kind: kinds[kind] for kind in sorted(kinds) if kind != "minimind"}


def make_tiny(kind: str):
    """Returns a tiny random model.

    Raises:
        Exception: Of transformers, where these sizes do not fit together.
    """
    config_class = getattr(transformers, CONFIG_MAPPING_NAMES[kind])
    defaults = config_class()
    text = defaults.get_text_config()
    known = {name: size for name, size in SIZES.items() if _is_size(text, name)}
    if getattr(text, "layer_types", None):
        known["layer_types"] = _two_kinds(text.layer_types)
    config = type(text)(**known | FURTHER.get(kind, {}))
    if getattr(config, "is_decoder", None) is False:
        config.is_decoder = True
    model_class = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind])
    if type(text) is not config_class and model_class.config_class is config_class:
        raise ValueError("its text model is a part of one for images or sound")
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in model_class(config).parameters())
    if size > MOST_PARAMETERS:
        raise ValueError(f"it has {size:,} parameters at these sizes")
    torch.manual_seed(0)
    return model_class(config).eval()


def _is_size(config, name: str) -> bool:
    value = getattr(config, name, None)
    return name in ("pad_token_id", "bos_token_id", "eos_token_id") or (isinstance(value, int) and value > 0)


def _two_kinds(kinds: list[str]) -> list[str]:
    first, *others = dict.fromkeys(kinds)
    return [first, others[0] if others else first]


def tried(kind: str) -> dict[str, str]:
    """Returns how a model type fares: `outcome` ("trained", "refused", "not tried"), `layout`, `rollout`, `reason`."""
    try:
        model = make_tiny(kind)
    except Exception as error:  # whatever transformers raises: the reason is what is reported
        return {"outcome": "not tried", "reason": _line(error)}
    trainer_or_error = _trainer(model)
    if isinstance(trainer_or_error, ValueError):
        return {"outcome": "refused", "reason": _line(trainer_or_error)}
    trainer = trainer_or_error
    trainer.train()
    (step,) = [log for log in trainer.state.log_history if "loss" in log]  # the summary repeats what was measured last
    difference = step["sampling/sampling_logp_difference/max"]
    return {
        "outcome": "trained",
        "layout": trainer.layout,
        "rollout": rollout_path(trainer.policy),
        "difference": f"{difference:.0e}",
    }


def rollout_path(model) -> str:
    """Returns the decoder of the torch engine for a model."""
    from minimind_hf.rollout.torch.caches import is_recurrent
    from minimind_hf.rollout.torch.fast_support import why_not_fast

    if why_not_fast(model) is None:
        return "fast"
    return "recurrent" if is_recurrent(model) else "general"


def _trainer(model):
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))
    from tiny import QUIET, make_tokenizer, share_of_a

    from minimind_hf import GRPOConfig, GRPOTrainer

    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        **QUIET,
        max_steps=1,
        logging_steps=1,
        num_generations=4,
        per_device_train_batch_size=8,
        max_completion_length=8,
        disable_dropout=True,
    )
    prompts = [{"prompt": text} for text in ("a", "bcd", "efgh", "a b c d e")]
    try:
        return GRPOTrainer(model, share_of_a, args, train_dataset=prompts, processing_class=make_tokenizer())
    except ValueError as error:
        return error


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def main(kinds: list[str]) -> None:
    found = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for kind in kinds or causal_lms():
        try:
            found[kind] = {"class": causal_lms()[kind], **tried(kind)}
        except Exception as error:  # to be mended: neither trained nor refused at construction
            found[kind] = {"class": causal_lms()[kind], "outcome": "failed", "reason": _line(error)}
        RESULTS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
