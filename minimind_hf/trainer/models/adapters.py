# SPDX-License-Identifier: Apache-2.0
"""Several adapters on one frozen base, each with its own task, all trained in the same step.

When peft activates an adapter, it makes that adapter trainable and freezes the others. The functions here only choose
the adapter that computes: which parameters are trainable was decided when the model was built.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from peft import LoraConfig, PeftConfig, PeftModel
from torch import nn

POLICY_ADAPTER = "default"
CRITIC_ADAPTER = "critic"
TEACHER_ADAPTER = "teacher"

PLAIN_STARTS = ("gaussian", "eva", "orthogonal")  # `init_lora_weights`: B times A is 0 up to rounding, as with True


def activate(policy: PeftModel, name: str) -> None:
    """Activates the adapter `name`."""
    with _trainability_kept(policy):
        policy.set_adapter(name)


@contextmanager
def active_adapter(policy: PeftModel, name: str) -> Iterator[None]:
    """Activates the adapter `name` within the context."""
    previous = policy.active_adapter
    if name == previous:
        yield
        return
    activate(policy, name)
    try:
        yield
    finally:
        activate(policy, previous)


@contextmanager
def adapters_off(policy: PeftModel) -> Iterator[None]:
    """Switches all adapters off within the context, so that the base alone computes."""
    with _trainability_kept(policy), policy.disable_adapter():
        yield


@contextmanager
def _trainability_kept(policy: PeftModel) -> Iterator[None]:
    flags = [(parameter, parameter.requires_grad) for parameter in policy.parameters()]
    try:
        yield
    finally:
        for parameter, requires_grad in flags:
            parameter.requires_grad_(requires_grad)


def recompute_contexts(policy: PeftModel) -> tuple:
    """The `context_fn` of a checkpointed layer, which recomputes it with the adapter of its first pass."""
    return nullcontext(), active_adapter(policy, policy.active_adapter)


def belongs_to(parameter_name: str, adapter: str) -> bool:
    """Whether a parameter of a peft model belongs to this adapter."""
    return f".{adapter}." in parameter_name or parameter_name.endswith(f".{adapter}")


def trained_outside_adapters(policy: nn.Module, within: nn.Module | None = None) -> list[str]:
    """Names of the parameters that are trained and of no adapter: the base moves with them.

    Args:
        policy (`nn.Module`): A peft model.
        within (`nn.Module`, *optional*): Only those of this module of it.
    """
    looked_at = {id(parameter) for parameter in (policy if within is None else within).parameters()}
    return [
        name
        for name, parameter in policy.named_parameters()
        if parameter.requires_grad
        and id(parameter) in looked_at
        and not any(belongs_to(name, adapter) for adapter in policy.peft_config)
    ]


def copy_adapter(policy: PeftModel, source: str, target: str) -> None:
    """Copies the weights of adapter `source` to `target`, for all weights that `target` has."""
    parameters = dict(policy.named_parameters())
    for name, parameter in parameters.items():
        copied = parameters.get(name.replace(f".{source}", f".{target}")) if belongs_to(name, source) else None
        if copied is not None:
            copied.data.copy_(parameter.data)


def starts_as_nothing(config: LoraConfig) -> bool:
    """Whether a model with fresh LoRA adapters of this kind computes what its base did before."""
    start = config.init_lora_weights
    return start is True or (isinstance(start, str) and start.lower() in PLAIN_STARTS)


def rewrites_base(config: PeftConfig) -> bool:
    """Whether adding adapters of this kind takes from the base's weights what the adapters start with (PiSSA, ...)."""
    return isinstance(config, LoraConfig) and not starts_as_nothing(config) and config.init_lora_weights is not False


def starting_plainly(config: PeftConfig) -> PeftConfig:
    """Returns a copy for an additional adapter whose weights are set later; adding it does not change the base."""
    config = copy.deepcopy(config)
    if hasattr(config, "init_lora_weights"):
        config.init_lora_weights = True
    return config


class BorrowedTrunk(nn.Module):
    """The trunk of the policy, run with the critic's adapter; it holds no weights itself."""

    def __init__(self, policy: PeftModel):
        super().__init__()
        self.__dict__["_policy"] = policy  # not a submodule: its weights are registered once, with the policy

    def forward(self, *args, **kwargs):
        with active_adapter(self._policy, CRITIC_ADAPTER):
            return self._policy.get_base_model().base_model(*args, **kwargs)
