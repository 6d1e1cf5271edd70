# SPDX-License-Identifier: Apache-2.0
"""The reference of the KL penalty: the frozen initial policy, or a model that follows the policy.

A reference that follows the policy ([TR-DPO](https://arxiv.org/abs/2404.09656)) is part of every checkpoint. Sharded
weights are mixed, saved and loaded parameter by parameter, so that no process ever holds a second whole model.
"""

import copy
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, is_peft_model
from peft import PeftModel, PeftType
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel
from trl.models.utils import prepare_deepspeed, prepare_fsdp
from trl.trainer.callbacks import SyncRefModelCallback
from trl.trainer.utils import use_adapter

from ...forward.introspection import unwrap, vocabulary_size
from ...forward.token_batch import made_up_batch
from ..distributed.sharding import reshard, whole_parameter, whole_tensor, whole_weights
from .adapters import (
    POLICY_ADAPTER,
    adapters_off,
    belongs_to,
    copy_adapter,
    starting_plainly,
    starts_as_nothing,
    trained_outside_adapters,
)

REFERENCE_ADAPTER = "ref"
REFERENCE_FILE = "reference.pt"
_LOOKED_AT = 64  # numbers of each parameter

# How much rounding may change a logit, in parts of the largest one; reduced precision: 1e-2.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-5}


class Reference:
    """The frozen initial policy, the reference of the KL penalty.

    With peft as little as possible is copied: the base with adapters off is the reference of fresh ones that start as
    nothing, a frozen LoRA adapter that of LoRA which was trained before or changes the model from the start. A whole
    frozen copy is the reference where the base moves too (trained biases, norms, head), and of other adapters.
    """

    def __init__(self, policy: PreTrainedModel, fresh_adapters: bool):
        self._adapter = None
        self._model = None
        if not is_peft_model(policy) or trained_outside_adapters(policy):
            self._model = _frozen_copy(policy)
        elif not (fresh_adapters and _starts_as_its_base(policy)):
            if policy.peft_config[POLICY_ADAPTER].peft_type == PeftType.LORA:
                self._adapter = _add_reference_adapter(policy)
            else:  # whose state may be more than parameters, or which cannot be there twice
                self._model = _frozen_copy(policy)
        self._fingerprint = None if self._model is None else fingerprint_of(self._model.parameters())

    @property
    def fingerprint(self) -> str | None:
        """Tells copies with other weights apart; `None` if there is no copy, or its weights are sharded already."""
        return self._fingerprint

    @property
    def model(self) -> PreTrainedModel | None:
        """The copy; there is none where adapters on the policy's base are the reference."""
        return self._model

    def prepare(self, accelerator: Accelerator) -> None:
        """Places the copy on the device, and shards it if the policy is sharded."""
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
        """Yields the model for the reference log-probabilities; `policy` is the wrapped policy."""
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


def _starts_as_its_base(policy: PeftModel) -> bool:
    """Whether the policy computes what its base does: LoRA by how it begins, other adapters by trying."""
    config = policy.peft_config[POLICY_ADAPTER]
    if config.peft_type == PeftType.LORA:
        return starts_as_nothing(config)
    with whole_weights(policy):
        return _differs_from_its_base(policy) <= _TOLERANCE.get(unwrap(policy).dtype, 1e-2)


@torch.no_grad()
def _differs_from_its_base(policy: PeftModel) -> float:
    """The largest change of a logit by the adapters on some tokens, in parts of the largest logit."""
    batch = made_up_batch(vocabulary_size(policy), next(policy.parameters()).device)
    ids = batch.padded()[2]
    was_training = policy.training
    policy.eval()
    try:
        adapted = policy(input_ids=ids).logits
        with adapters_off(policy):
            plain = policy(input_ids=ids).logits
    finally:
        policy.train(was_training)
    return ((adapted - plain).abs().max() / plain.abs().max()).item()


def _add_reference_adapter(policy: PreTrainedModel) -> str:
    policy.add_adapter(REFERENCE_ADAPTER, starting_plainly(policy.peft_config[POLICY_ADAPTER]))
    copy_adapter(policy, POLICY_ADAPTER, REFERENCE_ADAPTER)
    for name, parameter in policy.named_parameters():
        if belongs_to(name, REFERENCE_ADAPTER):
            parameter.requires_grad_(False)
    return REFERENCE_ADAPTER


def check_can_sync(reference: Reference) -> None:
    """Refuses a reference without weights of its own, which could not follow the policy.

    Raises:
        ValueError: If the policy has adapters.
    """
    if reference.model is None:
        raise ValueError(
            "sync_ref_model=True with adapters: the reference is the base model without them, so it has no separate "
            "weights that could follow the policy. Set sync_ref_model=False, or train all weights."
        )


class ReferenceSync(SyncRefModelCallback):
    """trl's callback, with a reference that is part of every checkpoint that can be resumed.

    Args:
        reference (`nn.Module`): The wrapped reference.
        accelerator: The trainer's.
    """

    def __init__(self, reference: nn.Module, accelerator: Accelerator):
        super().__init__(ref_model=reference, accelerator=accelerator)

    @staticmethod
    @torch.no_grad()
    def sync_target_model(model: nn.Module, target_model: nn.Module, alpha: float) -> None:
        """Moves the reference towards the policy; every process calls it."""
        for each in (model, target_model):
            reshard(each)
        for kept, new in zip(target_model.parameters(), model.parameters(), strict=True):
            with whole_parameter(new), whole_parameter(kept, changed=True):
                kept.data.mul_(1.0 - alpha).add_(new.data, alpha=alpha)

    @torch.no_grad()
    def save(self, checkpoint: str, writes: bool) -> None:
        """Saves the whole reference to a checkpoint that is being written; every process calls it.

        Args:
            checkpoint (`str`): Folder of the checkpoint.
            writes (`bool`): Whether this process writes.
        """
        reshard(self.ref_model)
        weights = {}
        for name, parameter in self._reference.named_parameters():
            with whole_parameter(parameter):
                whole = whole_tensor(parameter.detach())
                if writes:
                    weights[name] = whole.to("cpu", copy=True)
        if writes:
            torch.save(weights, Path(checkpoint) / REFERENCE_FILE)

    @torch.no_grad()
    def load(self, checkpoint: str) -> None:
        """Loads the reference of a checkpoint from any number of processes; every process calls it.

        Raises:
            FileNotFoundError: If the checkpoint has no reference.
            ValueError: If the reference belongs to another model.
        """
        weights = _read(Path(checkpoint) / REFERENCE_FILE)
        reshard(self.ref_model)
        for name, parameter in self._reference.named_parameters():
            if name not in weights:
                raise ValueError(
                    f"{Path(checkpoint) / REFERENCE_FILE} has no weights {name!r}, so it belongs to another model. "
                    "Resume from a checkpoint of this model."
                )
            with whole_parameter(parameter, changed=True):
                parameter.data.copy_(_laid_out_like(parameter, weights[name]))

    @property
    def _reference(self) -> nn.Module:
        return self.accelerator.unwrap_model(self.ref_model)


def _read(path: Path) -> dict[str, Tensor]:
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing, so the reference that follows the policy cannot be restored. The checkpoint was "
            "written without sync_ref_model; resume without it too, or start from this folder as a model."
        )
    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def _laid_out_like(parameter: nn.Parameter, whole: Tensor) -> Tensor:
    if not isinstance(parameter.data, DTensor):
        return whole
    return distribute_tensor(whole.to(parameter.device), parameter.device_mesh, parameter.placements)


def fingerprint_of(parameters: Iterable[nn.Parameter]) -> str | None:
    """Tells models with other weights apart by some numbers of each parameter; `None` if they are sharded already."""
    looked_at = [parameter.detach().flatten()[:_LOOKED_AT] for parameter in parameters]
    if not looked_at or any(part.numel() == 0 for part in looked_at):
        return None
    return f"{zlib.crc32(torch.cat([part.float().cpu() for part in looked_at]).numpy().tobytes()):08x}"
