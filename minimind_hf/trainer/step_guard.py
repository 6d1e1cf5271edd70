# SPDX-License-Identifier: Apache-2.0
"""Stops a run before an update that is not finite, so that weights and checkpoints stay good."""

import math

import torch
from accelerate import Accelerator
from torch import Tensor
from transformers.trainer_utils import get_last_checkpoint

from .experience.micro_batch import MicroBatch


class StepWatch:
    """Gathers what one optimizer step computes, and judges it before the update.

    Args:
        accelerator: Joins the processes, which stop together.
        judges_gradients (`bool`): Off for fp16, whose scaler meets infinite gradients and steps over them.
    """

    def __init__(self, accelerator: Accelerator, judges_gradients: bool = True):
        self._accelerator = accelerator
        self._judges_gradients = judges_gradients
        self.begin_step()

    def begin_step(self) -> None:
        """Forgets the step before."""
        self._losses: list[Tensor] = []
        self._rows: list[Tensor | None] = []
        self._norms: list[float | Tensor] = []

    def begin_micro_batch(self, batch: MicroBatch) -> None:
        """What is noted from now on is of this micro-batch."""
        self._losses.append(torch.zeros((), device=self._accelerator.device))
        self._rows.append(batch.get("rows"))

    def add_loss(self, loss: Tensor) -> None:
        """Notes a part of the micro-batch's loss, before its backward pass, within which DeepSpeed updates."""
        self._losses[-1] = self._losses[-1] + loss.detach()

    def add_gradient_norm(self, norm: float | Tensor | None) -> None:
        """Notes the norm of the gradient."""
        if norm is not None and self._judges_gradients:
            self._norms.append(norm)

    def verdict(self) -> str | None:
        """Says what of the step is not finite, on all processes if it is on one."""
        losses, norms = [float(loss) for loss in self._losses], [float(norm) for norm in self._norms]
        found = _describe(losses, self._rows, norms)
        if self._accelerator.num_processes > 1:
            anywhere = torch.tensor(float(found is not None), device=self._accelerator.device)
            anywhere = self._accelerator.reduce(anywhere, reduction="sum").item()
            if anywhere and found is None:
                return "another process met a loss or gradient that is not finite"
        return found


def _describe(losses: list[float], rows: list[Tensor | None], norms: list[float]) -> str | None:
    bad = [number for number, loss in enumerate(losses) if not math.isfinite(loss)]
    if bad:
        places = ", ".join(f"{number + 1} of {len(losses)}{_of_rows(rows[number : number + 1])}" for number in bad)
        return f"the loss is {losses[bad[0]]} in micro-batch {places}"
    norm = next((norm for norm in norms if not math.isfinite(norm)), None)
    if norm is not None:
        return f"the gradient's norm is {norm}{_of_rows(rows)}"
    return None


def _of_rows(rows: list[Tensor | None]) -> str:
    numbers = sorted({number for part in rows if part is not None for number in part.tolist()})
    return f" (rows {', '.join(map(str, numbers))} of the train dataset)" if numbers else ""


def what_remains(output_dir: str) -> str:
    """Says from where a stopped run can go on."""
    checkpoint = get_last_checkpoint(output_dir)
    if checkpoint is None:
        return "the update was not made; there is no checkpoint in the output folder yet, see save_steps"
    return f"the update was not made; the last good checkpoint is {checkpoint}"
