# SPDX-License-Identifier: Apache-2.0
"""The policy and its frozen reference: loading them, wrapping them for peft, and checking that they fit the data."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

from accelerate import Accelerator
from accelerate.utils import DistributedType, is_peft_model
from peft import LoraConfig, PeftConfig, PeftModel, TaskType, get_peft_model
from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.peft_utils import find_adapter_config_file
from trl.models.utils import prepare_deepspeed, prepare_fsdp
from trl.trainer.utils import create_model_from_path, disable_dropout_in_model, use_adapter

from ..forward.signature import forward_arguments, unwrap
from ..paths import check_loadable
from .adapters import CRITIC_ADAPTER, POLICY_ADAPTER, belongs_to, copy_adapter, starting_plainly, starts_as_nothing
from .config import RLConfig
from .sharding import whole_weights

REFERENCE_ADAPTER = "ref"


def load_policy(model: str | PreTrainedModel, args: RLConfig, peft_config: PeftConfig | None) -> PreTrainedModel:
    """Returns the model to train: loaded in float32 unless `model_init_kwargs` says otherwise, wrapped for peft.

    Raises:
        ValueError: If adapters were asked for on a model that has some, or those it has are not trainable or not named
            as peft names them by default.
    """
    if isinstance(model, str):
        model = _load(model, args)
    elif args.model_init_kwargs:
        raise ValueError(
            f"model_init_kwargs ({args.model_init_kwargs}) apply to a model given by its name, but the model is "
            f"already a {type(model).__name__}. Pass them to its from_pretrained instead."
        )
    if peft_config is not None:
        if is_peft_model(model):
            raise ValueError(
                "The model already has adapters, and peft_config asks for new ones. Leave peft_config out to train "
                "the adapters it has, or merge them first (model.merge_and_unload())."
            )
        model = get_peft_model(model, _for_language_models(peft_config, model.config.model_type))
    _check_adapter_learns(model)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(
            "No parameter of the model is trainable. Load an adapter to train with is_trainable=True, or call "
            "model.requires_grad_(True)."
        )
    if args.disable_dropout:
        disable_dropout_in_model(model)
    return model


def _load(name: str, args: RLConfig) -> PreTrainedModel:
    """Loads a model; given the folder or name of an adapter, its base and the adapter, to be trained further."""
    init_kwargs = {"trust_remote_code": args.trust_remote_code, **(args.model_init_kwargs or {})}
    cache_dir = init_kwargs.get("cache_dir")
    check_loadable(name, cache_dir=cache_dir)
    if find_adapter_config_file(name, revision=init_kwargs.get("revision")) is None:
        return create_model_from_path(name, architecture=AutoModelForCausalLM, **init_kwargs)
    revision = init_kwargs.pop("revision", None)  # of the adapter; its config may name one of the base
    config = PeftConfig.from_pretrained(name, revision=revision)
    if not config.base_model_name_or_path:
        raise ValueError(
            f"{name} is an adapter that does not say of which model. Set base_model_name_or_path in its "
            "adapter_config.json, or pass the model: PeftModel.from_pretrained(base, folder, is_trainable=True)."
        )
    if config.revision:
        init_kwargs["revision"] = config.revision
    check_loadable(config.base_model_name_or_path, f"base of the adapter {name}", cache_dir)
    base = create_model_from_path(config.base_model_name_or_path, architecture=AutoModelForCausalLM, **init_kwargs)
    return PeftModel.from_pretrained(base, name, is_trainable=True, revision=revision)


def _for_language_models(config: PeftConfig, model_type: str) -> PeftConfig:
    """Fills in what peft leaves open: the task, and where the adapters of a MiniMind go (as those of a Qwen3)."""
    config = copy.copy(config)
    config.task_type = config.task_type or TaskType.CAUSAL_LM  # so that peft's own Auto classes load what is saved
    if isinstance(config, LoraConfig) and not (config.target_modules or config.target_parameters):
        known = TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
        model_type = "qwen3" if model_type == "minimind" else model_type
        if model_type not in known:
            raise ValueError(
                f"peft has no default for the modules of a {model_type} that get adapters. Name them: "
                "target_modules='all-linear', or --lora_target_modules all-linear."
            )
        config.target_modules = set(known[model_type])
    return config


def _check_adapter_learns(model: nn.Module) -> None:
    """Refuses adapters that were loaded to be used, not to be trained."""
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ValueError(
            "The model's adapter was loaded by transformers, which keeps it frozen and leaves the base trainable. "
            "Pass the adapter's folder as model, or load it by AutoPeftModelForCausalLM.from_pretrained(folder, "
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
            f"The model's active adapter is named {model.active_adapter!r}, and the one to train has to be "
            f"{POLICY_ADAPTER!r}. Make or load it without adapter_name, or pass its folder as model."
        )
    taken = [name for name in (REFERENCE_ADAPTER, CRITIC_ADAPTER) if name in model.peft_config]
    if taken:
        raise ValueError(
            f"The model already has an adapter {taken[0]!r}, as a trainer that it was given to before adds one. Load "
            f"the model anew, or remove it: model.delete_adapter({taken[0]!r})."
        )


def check_fits(model: nn.Module, tokenizer: PreTrainedTokenizerBase, args: RLConfig) -> None:
    """Refuses a tokenizer with ids that the model has no embedding for, and lengths beyond the model's context.

    Raises:
        ValueError: With both numbers and what to change.
    """
    config = unwrap(model).config.get_text_config()
    if len(tokenizer) > config.vocab_size:
        raise ValueError(
            f"The tokenizer has {len(tokenizer)} tokens, the model embeds {config.vocab_size}. Use the model's own "
            "tokenizer, or call model.resize_token_embeddings(len(tokenizer))."
        )
    check_context(model, args)


def check_context(model: nn.Module, args: RLConfig, what: str = "model") -> None:
    """Refuses lengths beyond the context of a model.

    Raises:
        ValueError: With both numbers and what to change.
    """
    context = context_length(model)
    wanted = (args.max_prompt_length or 1) + args.max_completion_length
    if context is not None and wanted > context:
        raise ValueError(
            f"max_prompt_length ({args.max_prompt_length}) + max_completion_length ({args.max_completion_length}) = "
            f"{wanted} exceeds the {what}'s context of {context} tokens (max_position_embeddings). Lower one of them."
        )


def vocabulary_size(model: nn.Module) -> int:
    """Returns how many token ids the model embeds, whatever adapters wrap its embeddings."""
    return unwrap(model).config.get_text_config().vocab_size


def context_length(model: nn.Module) -> int | None:
    """Returns the tokens that the model was made for; unset for models whose positions have no end."""
    return getattr(unwrap(model).config.get_text_config(), "max_position_embeddings", None)


def eos_token_ids(model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Returns every id that ends a completion: those of the generation config, and the tokenizer's.

    Raises:
        ValueError: If there is none.
    """
    declared = getattr(unwrap(model).generation_config, "eos_token_id", None)
    declared = [declared] if isinstance(declared, int) else list(declared or [])
    ids = {*declared, tokenizer.eos_token_id} - {None}
    if not ids:
        raise ValueError(
            "Neither the model's generation config nor the tokenizer has an EOS token, so no completion could end. "
            "Set tokenizer.eos_token or model.generation_config.eos_token_id."
        )
    return tuple(sorted(ids))


def router_loss_coefficient(model: nn.Module, args: RLConfig) -> float:
    """Returns the weight of the router's balancing loss; 0 for a dense model.

    Raises:
        ValueError: If a weight was set for a model without routers.
    """
    config = unwrap(model).config.get_text_config()
    has_router = "output_router_logits" in forward_arguments(model) and getattr(config, "use_moe", True)
    if args.router_aux_loss_coef is not None:
        if args.router_aux_loss_coef > 0 and not has_router:
            raise ValueError(
                f"router_aux_loss_coef is {args.router_aux_loss_coef}, but {type(unwrap(model)).__name__} is not a "
                "mixture of experts. Leave it unset."
            )
        return args.router_aux_loss_coef
    return getattr(config, "router_aux_loss_coef", 0.0) if has_router else 0.0


class Reference:
    """The frozen policy of the start, which the KL penalty measures against.

    With peft nothing is copied but adapters: the base with adapters off is the reference of fresh ones, a frozen copy
    of the adapters that of ones which were trained before or change the model from the start.
    """

    def __init__(self, policy: PreTrainedModel, fresh_adapters: bool):
        self._adapter = None
        self._model = None
        if is_peft_model(policy):
            if not (fresh_adapters and starts_as_nothing(policy.peft_config[POLICY_ADAPTER])):
                self._adapter = _add_reference_adapter(policy)
        else:
            self._model = _frozen_copy(policy)

    @property
    def model(self) -> PreTrainedModel | None:
        """The copy; there is none with adapters."""
        return self._model

    def prepare(self, accelerator: Accelerator) -> None:
        """Places the copy on the device, sharded where the policy is."""
        if self._model is None:
            return
        if accelerator.distributed_type == DistributedType.DEEPSPEED:
            self._model = prepare_deepspeed(self._model, accelerator)
        elif accelerator.distributed_type == DistributedType.FSDP:
            self._model = prepare_fsdp(self._model, accelerator)
        else:
            self._model = accelerator.prepare_model(self._model, evaluation_mode=True)

    @contextmanager
    def scoring(self, policy: nn.Module, accelerator: Accelerator) -> Iterator[nn.Module]:
        """Yields the model to score with; `policy` is the wrapped policy."""
        if self._model is not None:
            yield self._model
            return
        was_training = policy.training
        policy.eval()
        try:
            with use_adapter(accelerator.unwrap_model(policy), self._adapter):
                yield policy
        finally:
            policy.train(was_training)


def _frozen_copy(policy: PreTrainedModel) -> PreTrainedModel:
    with whole_weights(policy):
        reference = copy.deepcopy(policy)
    return reference.eval().requires_grad_(False)


def _add_reference_adapter(policy: PreTrainedModel) -> str:
    policy.add_adapter(REFERENCE_ADAPTER, starting_plainly(policy.peft_config[POLICY_ADAPTER]))
    copy_adapter(policy, POLICY_ADAPTER, REFERENCE_ADAPTER)
    for name, parameter in policy.named_parameters():
        if belongs_to(name, REFERENCE_ADAPTER):
            parameter.requires_grad_(False)
    return REFERENCE_ADAPTER
