# SPDX-License-Identifier: Apache-2.0
"""The critic: a token classifier with one label, which transformers offers for most architectures.

It starts from the policy's weights, so that only its head is new, or from a separate folder. With adapters, it can be
an additional adapter on the policy's frozen base; it then consists only of that adapter and the head.
"""

import copy
from contextlib import nullcontext
from pathlib import Path

import torch
from accelerate.utils import is_peft_model
from peft import PeftConfig, PeftModel, TaskType, get_peft_model_state_dict
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForTokenClassification, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging
from transformers.utils.peft_utils import find_adapter_config_file

from ...forward.introspection import unwrap, vocabulary_size
from ...paths import check_loadable, check_model_path, without_load_report
from ..distributed.sharding import is_sharded, loading_whole, whole_weights
from ..settings.ppo import PPOConfig
from .adapters import (
    CRITIC_ADAPTER,
    POLICY_ADAPTER,
    BorrowedTrunk,
    belongs_to,
    copy_adapter,
    rewrites_base,
    starting_plainly,
    trained_outside_adapters,
)
from .dropout import disable_dropout
from .policy import check_context
from .weights import check_complete, load_adapter

logger = logging.get_logger(__name__)


def load_critic(policy: PreTrainedModel | PeftModel, args: PPOConfig) -> PreTrainedModel:
    """Returns the critic according to the settings.

    Args:
        policy: The policy, with its adapters if it has any. A critic on its base adds another adapter.
        args ([`PPOConfig`]): `critic_model_name_or_path`, `share_critic_base` and the settings for loading models.

    Returns:
        `PreTrainedModel`: A token classifier. With a shared base, its trunk is a [`BorrowedTrunk`].

    Raises:
        ValueError: If the architecture has no token classifier, or the given critic does not fit the policy.
    """
    source = args.critic_model_name_or_path
    if source is not None and not (source and Path(source).is_dir()):
        check_loadable(source, "critic")
    is_adapter = source is not None and find_adapter_config_file(source) is not None
    if is_adapter:
        critic = _kept_adapter(policy, source, args)
    elif source is not None:
        critic = _own_model(policy, source, args)
    elif is_peft_model(policy) and args.share_critic_base:
        critic = _fresh_adapter(policy, args)
    else:
        critic = _from_policy(policy, args)
    if args.disable_dropout:
        disable_dropout(critic)
    return critic


def is_shared(critic: nn.Module) -> bool:
    """Whether the critic shares the policy's base."""
    return isinstance(getattr(critic, critic.base_model_prefix), BorrowedTrunk)


def save_critic_adapter(policy: PeftModel, critic: PreTrainedModel, folder: Path, weights: dict | None = None) -> None:
    """Saves a critic on a shared base as an ordinary peft adapter of a token classifier, head included.

    Args:
        policy: Holds the adapter.
        critic: Holds the head.
        folder (`Path`): Created if missing.
        weights (`dict[str, Tensor]`, *optional*): Gathered weights of policy and critic, under the names `policy.*`
            and `critic.*`, if the modules themselves hold shards.
    """
    folder.mkdir(parents=True, exist_ok=True)
    adapter = get_peft_model_state_dict(policy, part_of(weights, "policy."), adapter_name=CRITIC_ADAPTER)
    trunk = f"base_model.model.{unwrap(policy).base_model_prefix}."
    saved = {name: tensor for name, tensor in adapter.items() if name.startswith(trunk)}
    head = part_of(weights, "critic.") or critic.state_dict()
    saved |= {f"base_model.model.{name}": tensor for name, tensor in head.items()}
    saved = {name: tensor.detach().cpu().contiguous() for name, tensor in saved.items()}
    save_file(saved, folder / SAFETENSORS_WEIGHTS_NAME, metadata={"format": "pt"})
    config = copy.deepcopy(policy.peft_config[CRITIC_ADAPTER])
    config.task_type = TaskType.TOKEN_CLS
    config.inference_mode = True
    config.base_model_name_or_path = config.base_model_name_or_path or policy.get_base_model().name_or_path or None
    config.modules_to_save = [*(config.modules_to_save or []), *{name.split(".")[0] for name in head}]
    config.save_pretrained(folder)


def load_critic_adapter(policy: PeftModel, critic: PreTrainedModel, folder: str | Path) -> None:
    """Loads what [`save_critic_adapter`] saved."""
    head = load_adapter(policy, folder, CRITIC_ADAPTER)
    head = {name.removeprefix("base_model.model."): tensor for name, tensor in head.items()}
    expected = set(critic.state_dict())
    check_complete(folder, expected - set(head), set(head) - expected, [])
    critic.load_state_dict(head)


# Where a critic comes from


def _from_policy(policy: PreTrainedModel | PeftModel, args: PPOConfig) -> PreTrainedModel:
    with whole_weights(policy):
        base = _merged_copy(policy) if is_peft_model(policy) else policy
        # Sharded at once only if the policy was: DeepSpeed wants all weights of one precision.
        with nullcontext() if is_sharded(policy) else loading_whole(args):
            critic = AutoModelForTokenClassification.from_config(
                _critic_config(base.config, args), dtype=base.dtype, trust_remote_code=args.trust_remote_code
            )
        _same_trunk(critic, base)
        with whole_weights(critic, changed=True):
            critic.base_model.load_state_dict(base.base_model.state_dict())
            _start_head(critic, args.seed)
    _say_only_the_head_is_new(critic, f"the weights of the policy ({type(base).__name__})", args)
    return critic.to(base.device)


def _merged_copy(policy: PeftModel) -> PreTrainedModel:
    if not hasattr(policy.base_model, "merge_and_unload"):
        raise ValueError(
            f"{policy.peft_config[POLICY_ADAPTER].peft_type.value} adapters cannot be merged into their base, so the "
            "critic cannot start from the policy's weights. Pass a critic as critic_model_name_or_path, train LoRA "
            "adapters, or use GRPO."
        )
    return copy.deepcopy(policy).merge_and_unload()


def _fresh_adapter(policy: PeftModel, args: PPOConfig) -> PreTrainedModel:
    config = _critic_adapter_config(policy, policy.peft_config[POLICY_ADAPTER])
    policy.add_adapter(CRITIC_ADAPTER, config)
    copy_adapter(policy, POLICY_ADAPTER, CRITIC_ADAPTER)
    critic = _head_on_shared_base(policy, args)
    _start_head(critic, args.seed)
    source = "the policy's frozen base with a separate adapter, which starts like the policy's"
    _say_only_the_head_is_new(critic, source, args)
    return critic


def _kept_adapter(policy: PreTrainedModel | PeftModel, source: str, args: PPOConfig) -> PreTrainedModel:
    if not args.share_critic_base:
        raise ValueError(
            f"critic_model_name_or_path ({source}) is an adapter, which needs the policy's base, and "
            "share_critic_base is False. Leave share_critic_base True, or pass the critic as a whole model "
            "(merge_and_unload(), then save_pretrained())."
        )
    if not is_peft_model(policy):
        raise ValueError(
            f"critic_model_name_or_path ({source}) is an adapter, and the policy is a {type(policy).__name__} without "
            "adapters, so there is no base to share. Train the policy with adapters (peft_config), or pass the critic "
            "as a whole model (merge_and_unload(), then save_pretrained())."
        )
    policy.add_adapter(CRITIC_ADAPTER, _critic_adapter_config(policy, PeftConfig.from_pretrained(source)))
    critic = _head_on_shared_base(policy, args)
    load_critic_adapter(policy, critic, source)
    _set_trainable(policy)
    return critic


def _own_model(policy: PreTrainedModel | PeftModel, source: str, args: PPOConfig) -> PreTrainedModel:
    check_model_path(source, "critic")
    base = unwrap(policy)
    config = AutoConfig.from_pretrained(source, num_labels=1, trust_remote_code=args.trust_remote_code)
    with without_load_report():  # the head is new
        critic, info = AutoModelForTokenClassification.from_pretrained(
            source,
            config=_critic_config(config, args),
            dtype=base.dtype,
            trust_remote_code=args.trust_remote_code,
            ignore_mismatched_sizes=True,  # so that `check_complete` can report all differences
            output_loading_info=True,
        )
    check_context(critic, args, "critic")
    head = {name for name, _ in critic.named_parameters() if not name.startswith(f"{critic.base_model_prefix}.")}
    missing = set(info["missing_keys"])
    if missing == head:
        with whole_weights(critic, changed=True):
            _start_head(critic, args.seed)
        _say_only_the_head_is_new(critic, f"the weights of {source}", args)
    else:
        missing -= _start_bias(critic, missing, source, args)
        check_complete(source, missing, [], info["mismatched_keys"])
    embedded, needed = vocabulary_size(critic), vocabulary_size(base)
    if embedded < needed:
        raise ValueError(
            f"The critic {source} embeds {embedded} tokens, the policy {needed}. Both read the same token ids: choose "
            "a critic with the policy's tokenizer, or leave critic_model_name_or_path unset."
        )
    return critic.to(base.device)


# Its parts


def _critic_config(config: PreTrainedConfig, args: PPOConfig) -> PreTrainedConfig:
    config = copy.deepcopy(config)
    knows_class = type(config) in AutoModelForTokenClassification._model_mapping
    by_its_code = args.trust_remote_code and "AutoModelForTokenClassification" in getattr(config, "auto_map", {})
    if not (knows_class or by_its_code):
        raise ValueError(
            f"transformers has no token classifier for {type(config).__name__}, and the critic needs one. Pass a "
            "critic of another architecture with the same tokenizer as critic_model_name_or_path, or use GRPO."
        )
    config.num_labels = 1
    if getattr(config, "classifier_dropout", None) is None:
        config.classifier_dropout = 0.0  # with the default, 0.1, two passes would give different values
    return config


def _head_on_shared_base(policy: PeftModel, args: PPOConfig) -> PreTrainedModel:
    base = policy.get_base_model()
    config = _critic_config(base.config, args)
    with loading_whole(args), torch.device("meta"):
        critic = AutoModelForTokenClassification.from_config(
            config, dtype=base.dtype, trust_remote_code=args.trust_remote_code
        )
    _same_trunk(critic, base)
    setattr(critic, critic.base_model_prefix, BorrowedTrunk(policy))
    _set_trainable(policy)
    return critic.to_empty(device=base.device)


def _same_trunk(critic: PreTrainedModel, base: PreTrainedModel) -> None:
    if type(critic.base_model) is not type(base.base_model):
        raise ValueError(
            f"The trunk of {type(critic).__name__} is a {type(critic.base_model).__name__}, but the policy's is a "
            f"{type(base.base_model).__name__}, so the critic cannot start from the policy's weights. Pass a critic "
            "as critic_model_name_or_path."
        )


def _start_head(critic: PreTrainedModel, seed: int) -> None:
    """Initializes the head to predict values near 0, so that the first advantages reflect rewards, not a random head.

    The weights depend only on the seed: creating a critic draws different random numbers under ZeRO-3 than elsewhere.
    """
    (head,) = [module for _, module in _own_modules(critic) if isinstance(module, nn.Linear)]
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(head.weight.shape, generator=generator) / (head.in_features + 1)
    head.weight.data.copy_(weight)
    if head.bias is not None:
        nn.init.zeros_(head.bias)


def _start_bias(critic: PreTrainedModel, missing: set[str], source: str, args: PPOConfig) -> set[str]:
    """Sets a head's bias to 0 if only the bias is missing (reward models have none). Returns its name."""
    biases = {f"{name}.bias" for name, module in _own_modules(critic) if isinstance(module, nn.Linear)}
    if missing != biases:
        return set()
    with whole_weights(critic, changed=True):
        for name in biases:
            nn.init.zeros_(critic.get_parameter(name))
    if args.process_index == 0:
        logger.warning(
            f"The critic ({type(critic).__name__}) starts from {source}, head included; only the head's bias is new."
        )
    return biases


def _own_modules(critic: PreTrainedModel) -> list[tuple[str, nn.Module]]:
    return [(name, module) for name, module in critic.named_children() if name != critic.base_model_prefix]


def _say_only_the_head_is_new(critic: PreTrainedModel, source: str, args: PPOConfig) -> None:
    if args.process_index != 0:
        return
    names = ", ".join(name for name, module in _own_modules(critic) if isinstance(module, nn.Linear))
    logger.warning(f"The critic ({type(critic).__name__}) starts from {source}; only its head ({names}) is new.")


def _critic_adapter_config(policy: PeftModel, config: PeftConfig) -> PeftConfig:
    """Returns the config of the critic's adapter: like `config`, but only on the trunk.

    Raises:
        ValueError: If adapters of this kind cannot share a base.
    """
    for kind in (config, policy.peft_config[POLICY_ADAPTER]):
        if rewrites_base(kind):
            raise ValueError(
                f"init_lora_weights={kind.init_lora_weights!r} moves part of the base's weights into the adapter, and "
                "the critic would share that base. Set share_critic_base=False for a separate critic, or "
                "init_lora_weights=True."
            )
    if getattr(config, "bias", "none") != "none":
        raise ValueError(
            f"bias={config.bias!r} trains biases of the base, which policy and critic share. Set bias='none', or "
            "share_critic_base=False for a separate critic."
        )
    moving = trained_outside_adapters(policy, policy.get_base_model().base_model)
    if moving:
        raise ValueError(
            f"{len(moving)} parameters of the base are trained outside the policy's adapters ({moving[0]}, ...), and "
            "the critic would share that base. Freeze them (requires_grad_(False)), name their modules in "
            "modules_to_save, or set share_critic_base=False for a critic of its own."
        )
    config = starting_plainly(config)
    config.task_type = policy.peft_config[POLICY_ADAPTER].task_type
    config.inference_mode = False
    in_trunk = tuple(name for name, _ in policy.get_base_model().base_model.named_modules())
    if getattr(config, "modules_to_save", None):
        config.modules_to_save = [
            name for name in config.modules_to_save if any(module.endswith(name) for module in in_trunk)
        ] or None  # matched by suffix, as in peft
    return config


def _set_trainable(policy: PeftModel) -> None:
    """Makes the critic's adapter trainable only where the critic computes: not in the language-model head."""
    trunk = {id(parameter) for parameter in policy.get_base_model().base_model.parameters()}
    for name, parameter in policy.named_parameters():
        if belongs_to(name, CRITIC_ADAPTER):
            parameter.requires_grad_(id(parameter) in trunk)


def part_of(weights: dict[str, Tensor] | None, prefix: str) -> dict[str, Tensor] | None:
    """Returns the gathered weights of one model under its own names."""
    if weights is None:
        return None
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
