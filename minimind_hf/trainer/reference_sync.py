# SPDX-License-Identifier: Apache-2.0
"""A reference that follows the policy ([TR-DPO](https://arxiv.org/abs/2404.09656)), through checkpoints too."""

from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from transformers import PreTrainedModel
from transformers.integrations import is_deepspeed_zero3_enabled
from trl.trainer.callbacks import SyncRefModelCallback

from .policy import Reference

REFERENCE_FILE = "reference.pt"


def check_can_sync(reference: Reference, accelerator: Accelerator) -> None:
    """Refuses what has no reference weights that could be moved.

    Raises:
        ValueError: With peft, and where the reference is sharded.
    """
    if reference.model is None:
        raise ValueError(
            "sync_ref_model=True with adapters: the reference is the base model without them, there are no weights of "
            "its own that could follow the policy. Set sync_ref_model=False, or train all weights."
        )
    if accelerator.distributed_type == DistributedType.FSDP or is_deepspeed_zero3_enabled():
        raise ValueError(
            "sync_ref_model=True does not work where the reference is sharded (FSDP, ZeRO-3), since checkpoints hold "
            "the whole of it. Set sync_ref_model=False, or train with DDP or ZeRO-2."
        )


class ReferenceSync(SyncRefModelCallback):
    """trl's callback, with a reference that is part of every checkpoint that training can go on from."""

    def __init__(self, reference: PreTrainedModel, accelerator: Accelerator):
        super().__init__(ref_model=reference, accelerator=accelerator)

    def save(self, checkpoint: str) -> None:
        """Writes the reference into a checkpoint that is being made."""
        torch.save(self._reference.state_dict(), Path(checkpoint) / REFERENCE_FILE)

    def load(self, checkpoint: str) -> None:
        """Takes the reference of a checkpoint.

        Raises:
            FileNotFoundError: If it holds none.
        """
        path = Path(checkpoint) / REFERENCE_FILE
        if not path.exists():
            raise FileNotFoundError(
                f"{path} is missing, so the reference that follows the policy is not known. The checkpoint was "
                "written without sync_ref_model; resume without it too, or start from this folder as a model."
            )
        self._reference.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))

    @property
    def _reference(self) -> PreTrainedModel:
        return self.accelerator.unwrap_model(self.ref_model)
