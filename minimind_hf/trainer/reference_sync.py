# SPDX-License-Identifier: Apache-2.0
"""A reference that follows the policy ([TR-DPO](https://arxiv.org/abs/2404.09656)), through checkpoints too.

Where weights are in parts, they are mixed, saved and loaded parameter by parameter, so that no second model is ever
whole in one process.
"""

from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from trl.trainer.callbacks import SyncRefModelCallback

from .policy import Reference
from .sharding import reshard, whole_parameter, whole_tensor

REFERENCE_FILE = "reference.pt"


def check_can_sync(reference: Reference) -> None:
    """Refuses what has no reference weights that could be moved.

    Raises:
        ValueError: With peft.
    """
    if reference.model is None:
        raise ValueError(
            "sync_ref_model=True with adapters: the reference is the base model without them, there are no weights of "
            "its own that could follow the policy. Set sync_ref_model=False, or train all weights."
        )


class ReferenceSync(SyncRefModelCallback):
    """trl's callback, with a reference that is part of every checkpoint that training can go on from.

    Args:
        reference (`nn.Module`): As it is wrapped for scoring.
        accelerator: Of the trainer.
    """

    def __init__(self, reference: nn.Module, accelerator: Accelerator):
        super().__init__(ref_model=reference, accelerator=accelerator)

    @staticmethod
    @torch.no_grad()
    def sync_target_model(model: nn.Module, target_model: nn.Module, alpha: float) -> None:
        """Every process calls it."""
        for each in (model, target_model):
            reshard(each)
        for kept, new in zip(target_model.parameters(), model.parameters(), strict=True):
            with whole_parameter(new), whole_parameter(kept, changed=True):
                kept.data.mul_(1.0 - alpha).add_(new.data, alpha=alpha)

    @torch.no_grad()
    def save(self, checkpoint: str, writes: bool) -> None:
        """Puts the whole reference into a checkpoint that is being made; every process calls it.

        Args:
            checkpoint (`str`): Its folder.
            writes (`bool`): Whether this process does.
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
        """Takes the reference of a checkpoint, however many processes wrote it; every process calls it.

        Raises:
            FileNotFoundError: If it holds none.
            ValueError: If it is one of another model.
        """
        weights = _read(Path(checkpoint) / REFERENCE_FILE)
        reshard(self.ref_model)
        for name, parameter in self._reference.named_parameters():
            if name not in weights:
                raise ValueError(
                    f"{Path(checkpoint) / REFERENCE_FILE} has no weights {name!r}, so it is the reference of another "
                    "model. Resume from a checkpoint of this one."
                )
            with whole_parameter(parameter, changed=True):
                parameter.data.copy_(_laid_out_like(parameter, weights[name]))

    @property
    def _reference(self) -> nn.Module:
        return self.accelerator.unwrap_model(self.ref_model)


def _read(path: Path) -> dict[str, Tensor]:
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing, so the reference that follows the policy is not known. The checkpoint was "
            "written without sync_ref_model; resume without it too, or start from this folder as a model."
        )
    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def _laid_out_like(parameter: nn.Parameter, whole: Tensor) -> Tensor:
    if not isinstance(parameter.data, DTensor):
        return whole
    return distribute_tensor(whole.to(parameter.device), parameter.device_mesh, parameter.placements)
