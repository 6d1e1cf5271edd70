# SPDX-License-Identifier: Apache-2.0
"""The least seconds that a step or a rollout can take on this machine: what has to be multiplied and read, counted,
and how fast the machine does that, measured in the same run.

Counted are the products with the model's matrices and those of attention, each prompt once for its group. A forward
pass has them once; a backward pass twice, for the gradients of inputs and of weights. A decoding step also has to read
all weights: its limit is the larger of the two times. Nothing else counts: no norm, softmax, sampling, copy or
optimizer.

A product's time is the fastest of several at its shape and dtype, with torch's own matrices or with packed ones;
attention counts at the rate of the other products together, which it never reaches.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from minimind_hf.rollout.torch.packed_linear import PackedLinear


class Product(NamedTuple):
    """`(rows, inner)` times a weight, `(inner, outer)`."""

    rows: int
    inner: int
    outer: int

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.inner * self.outer


@dataclass
class Work:
    """What has to be multiplied: products by how often they occur, and floating-point operations of attention."""

    products: Counter[Product] = field(default_factory=Counter)
    attention: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.products + other.products, self.attention + other.attention)

    @property
    def flops(self) -> int:
        return self.attention + sum(product.flops * count for product, count in self.products.items())


class Shape(NamedTuple):
    """A dense decoder, as far as it multiplies.

    Args:
        layers (`Counter[tuple[int, int]]`): Inputs and outputs of the matrices of all layers, by how often they occur.
        head (`tuple[int, int]`): Those of the language-model head.
        attention_width (`int`): Heads times head size, over all layers.
    """

    layers: Counter[tuple[int, int]]
    head: tuple[int, int]
    attention_width: int

    @property
    def weights(self) -> int:
        """Weights that a decoded token reads."""
        matrices = [*self.layers.elements(), self.head]
        return sum(inner * outer for inner, outer in matrices)


def shape_of(model: nn.Module) -> Shape:
    """Reads the matrices off a model; its config names the heads as transformers does."""
    config, head = model.config, model.get_output_embeddings()
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    layers = Counter(
        (module.in_features, module.out_features)
        for module in model.modules()
        if isinstance(module, nn.Linear) and module is not head
    )
    width = config.num_hidden_layers * config.num_attention_heads * size
    return Shape(layers, (head.in_features, head.out_features), width)


def forward_work(shape: Shape, prompts: Sequence[int], groups: Sequence[Sequence[int]]) -> Work:
    """A pass that scores completions: prompts once, and no token after which there is nothing to score.

    Args:
        prompts (`Sequence[int]`): Tokens of each prompt.
        groups (`Sequence[Sequence[int]]`): Tokens of each completion, by prompt.
    """
    rows = sum(prompts) + sum(length - 1 for group in groups for length in group)
    products = Counter({Product(rows, *each): count for each, count in shape.layers.items()})
    products[Product(sum(map(sum, groups)), *shape.head)] += 1
    pairs = sum(_pairs(0, prompt) for prompt in prompts)
    pairs += sum(_pairs(p, n - 1) for p, group in zip(prompts, groups, strict=True) for n in group)
    return Work(products, 4 * shape.attention_width * pairs)


def _pairs(before: int, tokens: int) -> int:
    """Pairs of a token and one that it attends to, itself included."""
    return tokens * before + tokens * (tokens + 1) // 2


def backward_work(forward: Work) -> Work:
    return forward + forward


def prefill_work(shape: Shape, prompts: Sequence[int]) -> Work:
    """The prompts, and the logits of the first token of their completions."""
    return forward_work(shape, prompts, [[1] for _ in prompts])


def decode_rows(lengths: Iterable[int]) -> list[int]:
    """Rows of each decoding step of completions; their first tokens come from the prompts' logits."""
    lengths = list(lengths)
    return [sum(length > step for length in lengths) for step in range(1, max(lengths, default=0))]


class Machine:
    """What this machine reaches, measured when it is first asked for.

    Args:
        dtype (`torch.dtype`): Of the products.
        repeats (`int`): Times that each is done; the fastest counts.
    """

    def __init__(self, dtype: torch.dtype, repeats: int = 7):
        self.dtype, self.repeats = dtype, repeats
        self.seconds_of = cache(self._seconds_of)
        self._measured: list[tuple[int, float]] = []

    @cached_property
    def bytes_per_second(self) -> float:
        """When summing a buffer that fits in no cache."""
        buffer = torch.ones(64 * 2**20, dtype=torch.int64)
        return buffer.nbytes / fastest(buffer.sum, self.repeats)

    def _seconds_of(self, product: Product, backward: bool) -> float:
        seconds = self._times(*product, backward)
        self._measured.append((product.flops * (2 if backward else 1), seconds))
        return seconds

    def _times(self, rows: int, inner: int, outer: int, backward: bool) -> float:
        x, weight, gradient = (
            torch.randn(size).to(self.dtype) for size in ((rows, inner), (outer, inner), (rows, outer))
        )
        if backward:  # the gradients of inputs and of weights
            packed = PackedLinear(weight.T.contiguous(), None)
            inputs = min(self._fastest(lambda: gradient @ weight), self._fastest(lambda: packed(gradient)))
            return inputs + self._fastest(lambda: gradient.T @ x)
        packed = PackedLinear(weight, None)
        return min(self._fastest(lambda: F.linear(x, weight)), self._fastest(lambda: packed(x)))

    def _fastest(self, work: Callable[[], object]) -> float:
        return fastest(work, self.repeats)

    @property
    def flops_per_second(self) -> float:
        """Of all products that were measured so far, together."""
        flops, seconds = map(sum, zip(*self._measured, strict=True))
        return flops / seconds

    def seconds(self, forward: Work, backward: bool = False) -> float:
        """Least seconds of a forward pass with this work, or of its backward pass."""
        products = sum(self.seconds_of(each, backward) * count for each, count in forward.products.items())
        done = sum(each.flops * count for each, count in forward.products.items())
        return products * (1 + forward.attention / done)

    def decode_seconds(self, shape: Shape, lengths: Iterable[int]) -> float:
        """Least seconds of the decoding steps of completions of these lengths."""
        rows = decode_rows(lengths)
        reading = shape.weights * self.dtype.itemsize / self.bytes_per_second
        matrices = [*shape.layers.items(), (shape.head, 1)]
        most = max(rows, default=1)
        all_rows = sum(self.seconds_of(Product(most, *each), False) * count for each, count in matrices)
        return sum(max(reading, all_rows * count / most) for count in rows)


def fastest(work: Callable[[], object], repeats: int = 20) -> float:
    """Least seconds of doing something."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def rollout_limit(
    shape: Shape, machine: Machine, prompts: Sequence[int], completions: Sequence[Sequence[int]]
) -> float:
    """Least seconds of a rollout.

    Args:
        prompts (`Sequence[int]`): Tokens of each prompt.
        completions (`Sequence[Sequence[int]]`): Tokens of each completion, by prompt.
    """
    lengths = [length for group in completions for length in group]
    return machine.seconds(prefill_work(shape, prompts)) + machine.decode_seconds(shape, lengths)


def step_limits(
    shape: Shape,
    machine: Machine,
    prompts: Sequence[int],
    completions: Sequence[Sequence[int]],
    has_critic: bool = False,
) -> dict[str, float]:
    """Least seconds of the phases of a step with a reference; see [`rollout_limit`].

    Args:
        has_critic (`bool`): Whether values are computed once, and a critic like the policy is updated too.
    """
    policy = forward_work(shape, prompts, completions)
    limits = {
        "rollout": rollout_limit(shape, machine, prompts, completions),
        "reference": machine.seconds(policy),
        "update": machine.seconds(policy) + machine.seconds(policy, backward=True),
    }
    if has_critic:
        critic = forward_work(shape._replace(head=(shape.head[0], 1)), prompts, completions)
        limits["values"] = machine.seconds(critic)
        limits["update"] += machine.seconds(critic) + machine.seconds(critic, backward=True)
    return limits
