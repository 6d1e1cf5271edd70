# SPDX-License-Identifier: Apache-2.0
"""Checks between the gradients of an optimizer step and its update.

An update with a loss or gradient that is not finite, or on completions that other weights than the trainer's have
drawn, ends the run, so that weights and checkpoints stay good. An update with nothing to learn from, or one that the
algorithm skips, leaves weights and optimizer unchanged.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import TrainerCallback

from ..language import Text, Texts
from .distributed.deepspeed import guard_step
from .experience.micro_batch import MicroBatch
from .experience.mismatch import K3
from .metrics import Metrics


class StepGuard(TrainerCallback):
    """Collects losses and gradient norms of one optimizer step, and decides about the update in all processes alike.

    Args:
        accelerator: Connects the processes.
        skips (`Callable[[], bool]`): Whether to skip the next update. Called once per step, in all processes.
        judge (`Callable[[Text | None, float], None]`): Called once per step, in all processes, with a description of
            what is not finite, if anything, and the mean `sampling/k3`; ends the run by raising an error.
        judges_gradients (`bool`): False for fp16, whose scaler skips steps with infinite gradients itself.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        skips: Callable[[], bool],
        judge: Callable[[Text | None, float], None],
        judges_gradients: bool = True,
    ):
        self._accelerator = accelerator
        self._skips, self._judge = skips, judge
        self._judges_gradients = judges_gradients
        self.begin_step()

    def begin_step(self, metrics: Metrics | None = None) -> None:
        """Clears the records of the previous step; this one measures `sampling/k3`, if at all, in these metrics."""
        self._metrics = metrics
        self._losses: list[Tensor] = []
        self._rows: list[list[int]] = []
        self._norms: list[float | Tensor] = []
        self._is_skipped: bool | None = None

    def begin_micro_batch(self, batch: MicroBatch) -> None:
        """Starts the records of this micro-batch."""
        self._losses.append(torch.zeros((), device=self._accelerator.device))
        self._rows.append(batch.rows)

    def add_loss(self, loss: Tensor) -> None:
        """Records a part of the micro-batch's loss. Call it before the backward pass, in which DeepSpeed updates."""
        self._losses[-1] = self._losses[-1] + loss.detach()

    def add_gradient_norm(self, norm: float | Tensor | None) -> None:
        """Records the norm of the gradient."""
        if norm is not None and self._judges_gradients:
            self._norms.append(norm)

    def skips_update(self) -> bool:
        """Whether the next update is skipped; decided once per step, in all processes alike."""
        if self._is_skipped is None:
            self._is_skipped = self._skips()
        return self._is_skipped

    def judge(self, norm: float | None = None) -> None:
        """Ends the run in all processes if a loss or gradient of the step is not finite in one of them, or if the
        engine is too far from the trainer."""
        self.add_gradient_norm(norm)
        self._judge(*self._gathered())

    def guard(self, deepspeed_engine: Any, clip: Callable[[], None]) -> None:
        """Inserts the checks and the clipping between backward and update, where DeepSpeed does both."""
        guard_step(deepspeed_engine, clip, self.judge, self.skips_update)

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        self.judge()
        if self.skips_update():
            # Without gradients an optimizer does not change parameters. With gradients of 0 it would still apply
            # momentum and weight decay.
            optimizer.zero_grad(set_to_none=True)

    def _gathered(self) -> tuple[Text | None, float]:
        """What is not finite, and the mean k3 of the step over all processes."""
        losses, norms = [float(loss) for loss in self._losses], [float(norm) for norm in self._norms]
        found = _describe(losses, self._rows, norms)
        total, count = self._metrics.take_watched(K3) if self._metrics is not None else (0.0, 0.0)
        if self._accelerator.num_processes > 1:
            told = torch.tensor([float(found is not None), total, count], device=self._accelerator.device)
            anywhere, total, count = self._accelerator.reduce(told, reduction="sum").tolist()
            if anywhere and found is None:
                found = Text("another process met a loss or gradient that is not finite")
        return found, total / count if count else 0.0


def _describe(losses: list[float], rows: list[list[int]], norms: list[float]) -> Text | None:
    bad = [number for number, loss in enumerate(losses) if not math.isfinite(loss)]
    if bad:
        places = Texts(*(_place(number, len(losses), rows[number : number + 1]) for number in bad))
        return Text("the loss is {loss} in micro-batch {places}", loss=losses[bad[0]], places=places)
    norm = next((norm for norm in norms if not math.isfinite(norm)), None)
    if norm is not None:
        return Text("the gradient's norm is {norm}{rows}", norm=norm, rows=_of_rows(rows))
    return None


def _place(number: int, count: int, rows: list[list[int]]) -> Text:
    return Text("{number} of {count}{rows}", number=number + 1, count=count, rows=_of_rows(rows))


def _of_rows(rows: list[list[int]]) -> Text | str:
    numbers = sorted({number for part in rows for number in part})
    return Text(" (rows {rows} of the train dataset)", rows=", ".join(map(str, numbers))) if numbers else ""
