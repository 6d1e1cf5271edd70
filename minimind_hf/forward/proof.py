# SPDX-License-Identifier: Apache-2.0
"""Whether a fast way of computing equals the plain one, on tokens of the run itself.

A fast path that is right on one device may be wrong on another. So a run computes a little both ways on its own device
before it takes the fast one. What may differ is rounding: what is tolerated depends on the dtype, and differences are
root mean squares over a row, in which rounding averages out and a fault does not.
"""

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .layouts import score_completions
from .lean import plain_forwards
from .on_device import to_device
from .token_batch import TokenBatch
from .values import completion_values

MODES = ("first", "always", "off")
SMALL = 0.05  # a parameter with less than this share of the whole gradient is compared with this share


@dataclass(frozen=True)
class Tolerance:
    """Largest differences that rounding explains.

    Attributes:
        logits (`float`): Of a row of logits, in parts of their standard deviation.
        outliers (`float`): Share of rows of logits that may differ more: where a router rounds to another expert.
        logps (`float`): Of the log-probabilities of a completion, in nats.
        gradient (`float`): Of the gradient of a parameter, in parts of its norm.
        tokens (`float`): Share of drawn tokens, which differ where a number lies between two.
    """

    logits: float
    outliers: float
    logps: float
    gradient: float
    tokens: float


_TOLERANCES = {
    torch.float64: Tolerance(1e-6, 0.0, 1e-6, 1e-5, 0.02),
    torch.float32: Tolerance(1e-3, 0.0, 1e-3, 5e-3, 0.02),
    torch.float16: Tolerance(0.03, 0.1, 0.05, 0.1, 0.1),
    torch.bfloat16: Tolerance(0.1, 0.1, 0.15, 0.3, 0.25),
}
_TENSOR_FLOAT = Tolerance(0.02, 0.1, 0.03, 0.1, 0.1)  # float32 whose products are rounded to 10 bits


def tolerance_of(dtype: torch.dtype, device: torch.device) -> Tolerance:
    """What rounding explains in a dtype that a device computes in."""
    rounds = device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
    return _TENSOR_FLOAT if rounds and dtype == torch.float32 else _TOLERANCES[dtype]


@dataclass(frozen=True)
class Finding:
    """What a comparison found.

    Attributes:
        fault (`str`, *optional*): What differs and by how much, or the exception; unset if the two are equal.
        largest (`str`): The largest differences, in words.
    """

    fault: str | None
    largest: str = ""

    @classmethod
    def of(cls, differences: dict[str, tuple[float, float]], dtype: torch.dtype) -> "Finding":
        """Judges differences by name: how large each is, and how large it may be."""
        too_large = [
            f"{name} differ by {found:.2g} (at most {allowed:g} in {str(dtype).removeprefix('torch.')})"
            for name, (found, allowed) in differences.items()
            if not found <= allowed  # NaN is too large
        ]
        largest = ", ".join(f"{name} {found:.1e}" for name, (found, _) in differences.items())
        return cls("; ".join(too_large) or None, largest)

    def and_also(self, other: "Finding") -> "Finding":
        """Both together."""
        faults = [found.fault for found in (self, other) if found.fault]
        return Finding("; ".join(faults) or None, f"{self.largest}, {other.largest}")


def found_by(compare: Callable[[], Finding]) -> Finding:
    """What a comparison found, where an exception of the fast path is a finding too."""
    try:
        return compare()
    except Exception as error:  # of any kind: the plain path is there
        return Finding(f"trying it raised {type(error).__name__}: {(str(error).splitlines() or [''])[0]}")


@contextmanager
def random_states_kept(device: torch.device):
    """Leaves the global random states of the host and of a device as they were."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield


def plain_layout_of(layout: str) -> str:
    """The layout that another one is compared with, and whose place it takes."""
    return "unpadded" if layout == "unpadded" else "padded"


def compare_scores(
    model: nn.Module,
    batch: TokenBatch,
    temperature: float,
    layout: str,
    dtype: torch.dtype,
    with_aux_loss: bool = False,
    with_gradients: bool = True,
) -> Finding:
    """Compares the log-probabilities of a batch, and their gradients, with those of the padded layout.

    Args:
        model: A causal LM with whole weights; nothing of it changes.
        batch ([`TokenBatch`]): A few completions.
        temperature (`float`): At which they were sampled.
        layout (`str`): The layout to judge; the model's lean modules are judged with it.
        dtype (`torch.dtype`): What the model computes in.
        with_aux_loss (`bool`): Whether the router's loss is part of the run's.
        with_gradients (`bool`): Whether to compare gradients too.
    """

    def scored(layout: str) -> tuple[Tensor, Tensor]:
        scores = score_completions(model, batch, temperature, layout, with_aux_loss=with_aux_loss)
        loss = _mean_over(batch, scores.logps)
        return scores.logps, loss if scores.aux_loss is None else loss + scores.aux_loss

    return _compared(model, batch, "log-probabilities", scored, layout, dtype, with_gradients)


def compare_values(
    critic: nn.Module, batch: TokenBatch, layout: str, dtype: torch.dtype, with_gradients: bool = True
) -> Finding:
    """Compares a critic's values and their gradients with those of the padded layout; see [`compare_scores`]."""

    scale: list[Tensor] = []  # of the plain values, which come first: those of a new head are near 0

    def valued(layout: str) -> tuple[Tensor, Tensor]:
        values = completion_values(critic, batch, layout)
        if not scale:
            scale.append(values.detach()[_scored(batch)].std(correction=0).clamp(min=1e-12))
        return values / scale[0], _mean_over(batch, values)

    return _compared(critic, batch, "values", valued, layout, dtype, with_gradients)


def _compared(
    model: nn.Module,
    batch: TokenBatch,
    name: str,
    compute: Callable[[str], tuple[Tensor, Tensor]],
    layout: str,
    dtype: torch.dtype,
    with_gradients: bool,
) -> Finding:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad and with_gradients]
    plain_layout = plain_layout_of(layout)
    allowed, was_training = tolerance_of(dtype, batch.device), model.training
    model.eval()  # dropout would be compared with itself
    try:
        with random_states_kept(batch.device), torch.set_grad_enabled(bool(parameters)):
            with plain_forwards(model):
                plain, of_plain = _with_gradients(compute, plain_layout, parameters)
            fast, of_fast = _with_gradients(compute, layout, parameters)
    finally:
        model.train(was_training)
    differences = {name: (_of_rows(fast, plain, batch), allowed.logps)}
    if parameters:
        differences[f"gradients of {name}"] = (_of_gradients(of_fast, of_plain), allowed.gradient)
    return Finding.of(differences, dtype)


def _with_gradients(
    compute: Callable[[str], tuple[Tensor, Tensor]], layout: str, parameters: Sequence[nn.Parameter]
) -> tuple[Tensor, list[Tensor]]:
    computed, loss = compute(layout)
    if not parameters:
        return computed.detach(), []
    # Not `backward`, which would add to the run's gradients and start the exchange between processes.
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return computed.detach(), list(gradients)


def _scored(batch: TokenBatch) -> Tensor:
    """1 for the tokens that count, bool `(N, C)`."""
    mask = torch.zeros(len(batch), batch.width, dtype=torch.bool)
    for row in range(len(batch)):
        mask[row, list(batch.scored_places(row))] = True
    return to_device(mask, batch.device)


def _mean_over(batch: TokenBatch, values: Tensor) -> Tensor:
    mask = _scored(batch)
    return torch.where(mask, values, 0.0).sum() / mask.sum()


def _of_rows(fast: Tensor, plain: Tensor, batch: TokenBatch) -> float:
    """The root mean square difference of the row in which it is largest."""
    mask = _scored(batch)
    squares = torch.where(mask, fast.double() - plain.double(), 0.0).square().sum(dim=1)
    return (squares / mask.sum(dim=1).clamp(min=1)).max().sqrt().item()


def _of_gradients(fast: Sequence[Tensor], plain: Sequence[Tensor]) -> float:
    """The difference of the parameter in which it is largest, in parts of the norm."""
    norms = torch.stack([gradient.double().norm() for gradient in plain])
    differences = torch.stack(
        [(mine.double() - other.double()).norm() for mine, other in zip(fast, plain, strict=True)]
    )
    return (differences / norms.clamp(min=SMALL * norms.norm().item()).clamp(min=1e-12)).max().item()
