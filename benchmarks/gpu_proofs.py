# SPDX-License-Identifier: Apache-2.0
"""What `gpu.py` proves: kernels of attention against each other, and the proof that a run makes of itself."""

import logging
import tempfile
import time
from typing import Any

import torch
from gpu_shapes import Shape
from step_time import make_dataset, make_tokenizer, variety
from torch import Tensor

from minimind_hf import GRPOConfig, GRPOTrainer
from minimind_hf.forward import flex, shared_prompt
from minimind_hf.forward.row_layout import RowLayout

# A prompt and its completions: even, ragged, short, and long enough for several blocks of windows
GROUPS = ([(256, [1024] * 6)] * 2, [(200, [1000, 30, 555, 1]), (7, [300, 128])], [(1, [1, 2]), (3, [])])
QUICK_GROUPS = ([(9, [5, 5])] * 2, [(7, [12, 1]), (1, [3])])
WINDOWS = (None, 100)
HEADS, KV_HEADS, DIM = 8, 2, 64
# Largest difference to float64 that the kernel may have, in parts of that of fused attention, and where both are tiny
MORE_THAN_FUSED, AT_LEAST = 2.0, {"float32": 2e-5, "bfloat16": 2e-3}


def prove_attention(device: torch.device, dtype: str, quick: bool) -> dict[str, Any]:
    """Compares FlexAttention, and fused attention by groups, with float64 on the CPU: output and gradients.

    Returns:
        `holds`, the largest differences of both to float64, and the seconds of a pass of the first layout.
    """
    largest = {"flex": 0.0, "fused": 0.0}
    for groups in QUICK_GROUPS if quick else GROUPS:
        for window in WINDOWS:
            exact = _results(groups, window, torch.device("cpu"), torch.float64, with_flex=False)
            for name, with_flex in (("flex", True), ("fused", False)):
                found = _results(groups, window, device, getattr(torch, dtype), with_flex)
                pairs = zip(found, exact, strict=False)  # without gradients on a CPU, where FlexAttention has none
                worst = max(
                    ((mine.cpu().double() - true).abs().max() / true.abs().max()).item() for mine, true in pairs
                )
                largest[name] = max(largest[name], worst)
    bound = max(MORE_THAN_FUSED * largest["fused"], AT_LEAST[dtype])
    seconds = {f"{name}_s": _seconds(device, dtype, quick, name == "flex") for name in largest}
    return {"holds": largest["flex"] <= bound, "bound": bound, **largest, **seconds}


def _results(
    groups: list, window: int | None, device: torch.device, dtype: torch.dtype, with_flex: bool
) -> list[Tensor]:
    """The output, and the gradients of queries, keys and values where the kernel has them."""
    layout, states, grad = _inputs(groups, device, dtype)
    if with_flex and device.type == "cpu":
        with torch.no_grad():
            return [flex.flex_row_attention(*states, layout.flex(layout.hides(window)), None)]
    output = _attend(layout, states, window, with_flex)
    return [output.detach(), *torch.autograd.grad(output, states, grad)]


def _inputs(groups: list, device: torch.device, dtype: torch.dtype) -> tuple[RowLayout, list[Tensor], Tensor]:
    total = sum(prompt + sum(lengths) for prompt, lengths in groups)
    draw = torch.Generator().manual_seed(0)
    shapes = [(1, heads, total, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)]
    *states, grad = (torch.randn(shape, generator=draw).to(device, dtype) for shape in shapes)
    return RowLayout.of(groups, device), [each.requires_grad_() for each in states], grad


def _attend(layout: RowLayout, states: list[Tensor], window: int | None, with_flex: bool) -> Tensor:
    window = layout.hides(window)
    if with_flex:
        return flex.flex_row_attention(*states, layout.flex(window), None)
    return shared_prompt._by_group(*states, layout, window, {"scale": None})


def _seconds(device: torch.device, dtype: str, quick: bool, with_flex: bool) -> float:
    """Of forward and backward of the first layout, as in every layer of a micro-batch."""
    groups = (QUICK_GROUPS if quick else GROUPS)[0]
    layout, states, grad = _inputs(groups, device, getattr(torch, dtype))
    has_gradient = not (with_flex and device.type == "cpu")
    times = []
    for _ in range(2 if quick else 10):
        start = now(device)
        with torch.set_grad_enabled(has_gradient):
            output = _attend(layout, states, None, with_flex)
        if has_gradient:
            torch.autograd.grad(output, states, grad)
        times.append(now(device) - start)
    return round(sorted(times)[len(times) // 2], 6)


def now(device: torch.device) -> float:
    """The time when the device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


_PROVED = ("Rollouts of ", "Updates of ")  # how the lines begin in which a run says what it found


class _Said(logging.Handler):
    def __init__(self):
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def prove_run(device: torch.device, shape: Shape) -> dict[str, Any]:
    """Makes a step of a run that proves its rollouts and its updates, and takes down what it says."""
    said, logger = _Said(), logging.getLogger("minimind_hf")
    logger.addHandler(said)
    try:
        with tempfile.TemporaryDirectory() as folder:
            trainer = GRPOTrainer(
                shape.model(),
                variety,
                GRPOConfig(
                    output_dir=folder,
                    use_cpu=device.type == "cpu",
                    verify_fast_paths="always",
                    bf16=shape.dtype == torch.bfloat16,
                    max_steps=1,
                    per_device_train_batch_size=shape.rows,
                    num_generations=shape.group,
                    max_completion_length=min(128, shape.completion),
                    report_to="none",
                    save_strategy="no",
                    disable_tqdm=True,
                ),
                train_dataset=make_dataset(shape.prompt, 2 * shape.prompts),
                processing_class=make_tokenizer(),
            )
            trainer.train()
    finally:
        logger.removeHandler(said)
    lines = [line for line in dict.fromkeys(said.lines) if line.startswith(_PROVED)]
    holds = {line.split()[0] for line in lines} == {start.split()[0] for start in _PROVED}
    attention = trainer.policy.config._attn_implementation
    return {"holds": holds and all("which equals" in line for line in lines), "attention": attention, "said": lines}
