# SPDX-License-Identifier: Apache-2.0
"""The policy: loading it, wrapping it for peft, and checking that it fits the data."""

import copy
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import is_peft_model
from peft import LoraConfig, PeftConfig, PeftModel, TaskType, get_peft_model
from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging
from transformers.utils.peft_utils import find_adapter_config_file
from trl.trainer.utils import create_model_from_path

from ...forward.introspection import (
    context_length,
    forward_arguments,
    refuse_learned_prompts,
    unwrap,
)
from ...forward.layouts import choose_layout
from ...forward.lean import use_lean_norms, use_onednn
from ...forward.lean_mlp import use_lean_mlps
from ...forward.token_batch import made_up_batch
from ...paths import check_loadable, check_nothing_missing
from ..distributed.sharding import whole_weights
from ..settings.base import RLConfig
from .adapters import CRITIC_ADAPTER, POLICY_ADAPTER, TEACHER_ADAPTER
from .dropout import disable_dropout, say_that_it_drops_out
from .quantised import prepare_quantised
from .reference import REFERENCE_ADAPTER
from .rope import say_that_lengths_change_rope
from .weights import load_adapter

logger = logging.get_logger(__name__)


def load_policy(model: str | PreTrainedModel, args: RLConfig, peft_config: PeftConfig | None) -> PreTrainedModel:
    """Returns the model to train: loaded in float32 unless `model_init_kwargs` says otherwise, wrapped for peft.

    Raises:
        ValueError: If adapters were requested for a model that has some, or its adapters are not trainable or do not
            have peft's default name.
    """
    if isinstance(model, str):
        model = _load(model, args)
    elif args.model_init_kwargs:
        raise ValueError(
            f"model_init_kwargs ({args.model_init_kwargs}) apply to a model passed by name, but the model is "
            f"already a {type(model).__name__}. Pass them to its from_pretrained instead."
        )
    if peft_config is not None:
        if is_peft_model(model):
            raise ValueError(
                "The model already has adapters, and peft_config asks for new ones. Leave peft_config out to train "
                "the adapters it has, or merge them first (model.merge_and_unload())."
            )
        model = get_peft_model(model, _for_language_models(peft_config, model.config.model_type))
    refuse_learned_prompts(model)
    prepare_quantised(model, args, is_peft_model(model))
    _check_adapter_learns(model)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(
            "No parameter of the model is trainable. Load an adapter to train with is_trainable=True, or call "
            "model.requires_grad_(True)."
        )
    _see_no_later_tokens(model)
    if args.disable_dropout:
        disable_dropout(model)
    if args.process_index == 0:
        say_that_it_drops_out(model)
    return model


def _see_no_later_tokens(model: nn.Module) -> None:
    """Block-sparse attention (BigBird's) is not causal. The model exchanges it at its first short input, which brings
    new dropout, so it is exchanged at once."""
    for module in model.modules():
        if getattr(module, "attention_type", None) == "block_sparse" and hasattr(module, "set_attention_type"):
            module.set_attention_type("original_full")


def _load(name: str, args: RLConfig) -> PreTrainedModel:
    return load_whole(name, {"trust_remote_code": args.trust_remote_code, **(args.model_init_kwargs or {})})


def load_whole(name: str, init_kwargs: dict[str, Any]) -> PreTrainedModel:
    """Loads a model; for the folder or name of an adapter, loads its base and the adapter for further training.

    Args:
        name (`str`): A name or folder.
        init_kwargs (`dict`): Arguments of `from_pretrained`.

    Raises:
        ValueError: If it cannot be loaded, or does not name its base.
    """
    init_kwargs = dict(init_kwargs)
    cache_dir = init_kwargs.get("cache_dir")
    check_loadable(name, cache_dir=cache_dir)
    if find_adapter_config_file(name, revision=init_kwargs.get("revision")) is None:
        return create_model_from_path(name, architecture=_WholeCausalLM, **init_kwargs)
    revision = init_kwargs.pop("revision", None)  # the adapter's; its config may name the base's
    config = PeftConfig.from_pretrained(name, revision=revision)
    if not config.base_model_name_or_path:
        raise ValueError(
            f"{name} is an adapter that does not name its base model. Set base_model_name_or_path in its "
            "adapter_config.json, or pass the model: PeftModel.from_pretrained(base, folder, is_trainable=True)."
        )
    if config.revision:
        init_kwargs["revision"] = config.revision
    check_loadable(config.base_model_name_or_path, f"base of the adapter {name}", cache_dir)
    base = create_model_from_path(config.base_model_name_or_path, architecture=_WholeCausalLM, **init_kwargs)
    model = PeftModel.from_pretrained(base, name, is_trainable=True, revision=revision)
    if Path(name).is_dir():
        load_adapter(model, name, POLICY_ADAPTER)  # again, since peft leaves out without a word what the file lacks
    return model


class _WholeCausalLM:
    """AutoModelForCausalLM for trl's loader, which refuses weights that lack a tensor."""

    @staticmethod
    def from_pretrained(name: str, **kwargs: Any) -> PreTrainedModel:
        model, info = AutoModelForCausalLM.from_pretrained(name, output_loading_info=True, **kwargs)
        check_nothing_missing(name, model, info)
        return model


def _for_language_models(config: PeftConfig, model_type: str) -> PeftConfig:
    """Fills in settings that peft leaves open: the task, and the target modules of a MiniMind (as for Qwen3)."""
    config = copy.copy(config)
    config.task_type = config.task_type or TaskType.CAUSAL_LM  # so that peft's Auto classes can load the saved adapter
    if isinstance(config, LoraConfig) and not (config.target_modules or config.target_parameters):
        known = TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
        model_type = "qwen3" if model_type == "minimind" else model_type
        if model_type not in known:
            raise ValueError(
                f"peft has no default target_modules for a {model_type}. Set them: "
                "target_modules='all-linear', or --lora_target_modules all-linear."
            )
        config.target_modules = set(known[model_type])
    return config


def _check_adapter_learns(model: nn.Module) -> None:
    """Refuses adapters that were loaded for inference."""
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ValueError(
            "The model's adapter was loaded by transformers, which freezes it and leaves the base trainable. "
            "Pass the adapter's folder as model, or load it with AutoPeftModelForCausalLM.from_pretrained(folder, "
            "is_trainable=True)."
        )
    if is_peft_model(model) and model.peft_config[model.active_adapter].inference_mode:
        raise ValueError(
            f"The adapter {model.active_adapter!r} was loaded for inference and would not be trained. Load it with "
            "is_trainable=True, or pass its folder as model."
        )
    if is_peft_model(model):
        _check_adapter_names(model)


def _check_adapter_names(model: nn.Module) -> None:
    if model.active_adapter != POLICY_ADAPTER:
        raise ValueError(
            f"The model's active adapter is named {model.active_adapter!r}, but the trained adapter must be named "
            f"{POLICY_ADAPTER!r}. Create or load it without adapter_name, or pass its folder as model."
        )
    taken = [name for name in (REFERENCE_ADAPTER, CRITIC_ADAPTER, TEACHER_ADAPTER) if name in model.peft_config]
    if taken:
        raise ValueError(
            f"The model already has an adapter {taken[0]!r}, probably added by an earlier trainer. Load the model "
            f"again, or remove the adapter: model.delete_adapter({taken[0]!r})."
        )


def check_fits(model: nn.Module, tokenizer: PreTrainedTokenizerBase, args: RLConfig) -> None:
    """Refuses a tokenizer with more ids than the model has embeddings, and lengths beyond the model's context.

    Raises:
        ValueError: Naming both numbers and the settings to change.
    """
    config = unwrap(model).config.get_text_config()
    if len(tokenizer) > config.vocab_size:
        raise ValueError(
            f"The tokenizer has {len(tokenizer)} tokens, the model embeds {config.vocab_size}. Use the model's own "
            "tokenizer, or call model.resize_token_embeddings(len(tokenizer))."
        )
    check_context(model, args)
    if args.process_index == 0:
        say_that_lengths_change_rope(model, args)


def check_context(model: nn.Module, args: RLConfig, what: str = "model") -> None:
    """Refuses lengths beyond the context of a model.

    Raises:
        ValueError: Naming both numbers and the settings to change.
    """
    context = context_length(model)
    wanted = (args.max_prompt_length or 1) + args.max_completion_length
    if context is not None and wanted > context:
        raise ValueError(
            f"max_prompt_length ({args.max_prompt_length}) + max_completion_length ({args.max_completion_length}) = "
            f"{wanted} exceeds the {what}'s context of {context} tokens (max_position_embeddings). Lower one of them."
        )


def router_loss_coefficient(model: nn.Module, args: RLConfig) -> float:
    """Returns the weight of the router's balancing loss; 0 for a dense model.

    Raises:
        ValueError: If a weight was set for a model without routers.
    """
    config = unwrap(model).config.get_text_config()
    is_set = args.router_aux_loss_coef is not None
    coefficient = args.router_aux_loss_coef if is_set else getattr(config, "router_aux_loss_coef", 0.0)
    if coefficient and not _has_router_loss(model):
        if is_set:
            raise ValueError(
                f"router_aux_loss_coef is {args.router_aux_loss_coef}, but {type(unwrap(model)).__name__} is not a "
                "mixture of experts. Leave it unset."
            )
        return 0.0
    return coefficient


@torch.no_grad()
def _has_router_loss(model: nn.Module) -> bool:
    """Whether the model has a router's loss, asked of its config and then tried: dense models of some architectures
    take `output_router_logits` too, and return 0 or fail."""
    config = unwrap(model).config.get_text_config()
    is_mixture = getattr(config, "use_moe", getattr(config, "is_moe", True))
    if "output_router_logits" not in forward_arguments(model) or not is_mixture:
        return False
    batch = made_up_batch(config.vocab_size, next(model.parameters()).device)
    was_training = model.training
    model.eval()
    try:
        with whole_weights(model):
            outputs = model(input_ids=batch.padded()[2], output_router_logits=True, use_cache=False)
    except (AttributeError, LookupError, TypeError) as error:
        logger.warning(
            "%s is trained without a router's loss, which it cannot compute (%s: %s): a model without routers.",
            type(unwrap(model)).__name__,
            type(error).__name__,
            error,
        )
        return False
    finally:
        model.train(was_training)
    return isinstance(getattr(outputs, "aux_loss", None), torch.Tensor)


def fast_layout(policy: PreTrainedModel, args: RLConfig, with_aux_loss: bool, purpose: str = "trained") -> str:
    """Enables the fast paths that the policy supports, and returns the layout for its log-probabilities.

    Args:
        policy: The policy with its adapters, not yet wrapped for training.
        args ([`RLConfig`]): Settings; `forward_layout` is the requested layout.
        with_aux_loss (`bool`): Whether the run needs the router's auxiliary loss.
        purpose (`str`): What is done with the model, for the message.
    """
    use_lean_modules(policy, args)
    with whole_weights(policy):
        layout, reason = choose_layout(args.forward_layout, policy, with_aux_loss)
    if reason is not None:
        logger.warning(
            "%s is %s in the %s layout, which is slower than %s: %s.",
            type(unwrap(policy)).__name__,
            purpose,
            layout,
            args.forward_layout,
            reason,
        )
    return layout


def use_lean_modules(model: nn.Module, args: RLConfig) -> None:
    """On a CPU, enables linear layers, norms and feed-forwards that need less time and memory."""
    if args.device.type == "cpu" and not args.torch_compile:
        use_onednn(model)
        use_lean_norms(model)
        use_lean_mlps(model)
