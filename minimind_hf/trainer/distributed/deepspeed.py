# SPDX-License-Identifier: Apache-2.0
"""What comes between backward and update when DeepSpeed does both: clipping per model, and skipped updates.

accelerate calls the engine's `step` at the end of the last backward of an optimizer step, before the Trainer can clip
or decide. So the step itself is guarded, and so is the update inside it, which follows when the norm of the gradients
is known.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import all_reduce


def guard_step(
    engine: Any, clip: Callable[[], None], judge: Callable[[float | None], None], skips: Callable[[], bool]
) -> None:
    """Makes the engine clip and ask before it updates.

    Args:
        engine (`DeepSpeedEngine`): Guarded once, even if this is called several times.
        clip (`Callable`): Clips the gradients in place.
        judge (`Callable`): Raises if what was computed is not finite. All processes call it before anything is
            updated: first without the norm of the gradients, then again if the norm is not finite.
        skips (`Callable`): Returns whether this update is skipped; the same in all processes.
    """
    if hasattr(engine.step, "guarded"):
        return
    step = engine.step

    def guarded_step(*args: Any, **kwargs: Any) -> None:
        clip()
        judge(None)
        with _holding_still(engine) if skips() else _judging_norm(engine, judge):
            step(*args, **kwargs)

    guarded_step.guarded = True
    engine.step = guarded_step


def _holding_still(engine: Any) -> Any:
    """DeepSpeed drops the gradients as after any step, but its optimizer changes neither weights nor momentum."""
    return _updating_by(engine, lambda *args, **kwargs: None)


def _judging_norm(engine: Any, judge: Callable[[float | None], None]) -> Any:
    """In bfloat16 DeepSpeed updates with any gradients; in other precisions it skips bad ones itself."""
    update = engine.optimizer.optimizer.step

    def judged_update(*args: Any, **kwargs: Any) -> Any:
        norm = engine.optimizer._global_grad_norm  # the same in all processes
        if norm is not None and not math.isfinite(norm):
            judge(float(norm))
        return update(*args, **kwargs)

    return _updating_by(engine, judged_update)


@contextmanager
def _updating_by(engine: Any, update: Callable) -> Iterator[None]:
    """Replaces the update of the inner optimizer, which DeepSpeed calls once per group of parameters."""
    inner = engine.optimizer.optimizer
    before = vars(inner).get("step")  # a scheduler may have set its own
    inner.step = update
    try:
        yield
    finally:
        if before is None:
            del inner.step
        else:
            inner.step = before


@torch.no_grad()
def clip_engine_gradients(models: tuple[list[nn.Parameter], ...], max_norm: float, stage: int) -> list[Tensor]:
    """Clips the gradients of each model separately under ZeRO. Every process calls it.

    Args:
        models: Trainable parameters of each model.
        max_norm (`float`): Largest norm per model; infinite to only measure.
        stage (`int`): The stage of ZeRO.

    Returns:
        `list[Tensor]`: The norms before clipping.
    """
    return [_clip(parameters, max_norm, stage) for parameters in models]


def _clip(parameters: list[nn.Parameter], max_norm: float, stage: int) -> Tensor:
    from deepspeed.utils import safe_get_full_grad, safe_get_local_grad, safe_set_full_grad, safe_set_local_grad

    in_parts = stage == 3
    get, put = (safe_get_local_grad, safe_set_local_grad) if in_parts else (safe_get_full_grad, safe_set_full_grad)
    gradients = [(parameter, get(parameter)) for parameter in parameters]
    gradients = [(parameter, gradient) for parameter, gradient in gradients if gradient is not None]
    squared = torch.stack([gradient.double().square().sum() for _, gradient in gradients]).sum()
    if in_parts:
        all_reduce(squared)
    norm = squared.sqrt().float()
    if norm > max_norm:
        scale = max_norm / (norm + 1e-6)
        for parameter, gradient in gradients:
            put(parameter, gradient * scale)
    return norm
