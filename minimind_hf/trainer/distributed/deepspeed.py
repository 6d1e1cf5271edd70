# SPDX-License-Identifier: Apache-2.0
"""Clipping and checks between backward and update under DeepSpeed, which does both.

accelerate calls the `step` of the DeepSpeed engine at the end of the last backward pass of an optimizer step, before
the Trainer could clip or skip. So the step itself is wrapped, and also the update inside it, where the norm of the
gradients is known.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import all_reduce


def guard_step(
    deepspeed_engine: Any, clip: Callable[[], None], judge: Callable[[float | None], None], skips: Callable[[], bool]
) -> None:
    """Makes DeepSpeed clip gradients and check the step before it updates.

    Args:
        deepspeed_engine (`DeepSpeedEngine`): Wrapped once, however often this is called.
        clip (`Callable`): Clips the gradients in place.
        judge (`Callable`): Raises if losses or gradients are not finite. Called in all processes before the update:
            first without the norm of the gradients, then again if the norm is not finite.
        skips (`Callable`): Whether to skip this update; gives the same answer in all processes.
    """
    if hasattr(deepspeed_engine.step, "guarded"):
        return
    step = deepspeed_engine.step

    def guarded_step(*args: Any, **kwargs: Any) -> None:
        clip()
        judge(None)
        with _holding_still(deepspeed_engine) if skips() else _judging_norm(deepspeed_engine, judge):
            step(*args, **kwargs)

    guarded_step.guarded = True
    deepspeed_engine.step = guarded_step


def _holding_still(deepspeed_engine: Any) -> Any:
    """DeepSpeed clears the gradients as usual, but the inner optimizer changes neither weights nor momentum."""
    return _updating_by(deepspeed_engine, lambda *args, **kwargs: None)


def _judging_norm(deepspeed_engine: Any, judge: Callable[[float | None], None]) -> Any:
    """Checks the norm: in bfloat16 DeepSpeed updates with any gradients; otherwise it skips bad ones itself."""
    update = deepspeed_engine.optimizer.optimizer.step

    def judged_update(*args: Any, **kwargs: Any) -> Any:
        norm = deepspeed_engine.optimizer._global_grad_norm  # the same in all processes
        if norm is not None and not math.isfinite(norm):
            judge(float(norm))
        return update(*args, **kwargs)

    return _updating_by(deepspeed_engine, judged_update)


@contextmanager
def _updating_by(deepspeed_engine: Any, update: Callable) -> Iterator[None]:
    """Replaces the step of the inner optimizer, which DeepSpeed calls once per parameter group, in the context."""
    inner = deepspeed_engine.optimizer.optimizer
    before = vars(inner).get("step")  # a schedule may have replaced it
    inner.step = update
    try:
        yield
    finally:
        if before is None:
            del inner.step
        else:
            inner.step = before


@torch.no_grad()
def clip_deepspeed_gradients(models: tuple[list[nn.Parameter], ...], max_norm: float, stage: int) -> list[Tensor]:
    """Clips the gradients of each model separately under ZeRO, which partitions them; every process calls it.

    Args:
        models: Trainable parameters of each model.
        max_norm (`float`): Maximum norm for each model; infinity only measures.
        stage (`int`): The ZeRO stage.

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
