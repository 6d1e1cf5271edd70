# SPDX-License-Identifier: Apache-2.0
"""Collects the metrics of a run between two logs, over all micro-batches and processes.

Values stay tensors until they are read, so that measuring does not wait for the device. docs/metrics.md defines every
name.
"""

import math
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor


@dataclass
class _Moments:
    """Sum, sum of squares and count of one quantity."""

    total: float | Tensor = 0.0
    squares: float | Tensor = 0.0
    count: float | Tensor = 0.0

    def add(self, other: "_Moments") -> None:
        self.total = self.total + other.total
        self.squares = self.squares + other.squares
        self.count = self.count + other.count

    def as_floats(self) -> "_Moments":
        return _Moments(float(self.total), float(self.squares), float(self.count))

    @property
    def mean(self) -> float:
        return self.total / self.count

    @property
    def std(self) -> float:
        return max(self.squares / self.count - self.mean**2, 0.0) ** 0.5


@dataclass
class _Records:
    moments: dict[str, _Moments] = field(default_factory=lambda: defaultdict(_Moments))
    std_names: dict[str, str] = field(default_factory=dict)
    totals: dict[str, float | Tensor] = field(default_factory=lambda: defaultdict(float))
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    lowest: dict[str, float] = field(default_factory=dict)
    highest: dict[str, float | Tensor] = field(default_factory=dict)
    completions: int = 0
    tokens: int = 0

    def as_floats(self) -> "_Records":
        """Returns a copy without tensors, for the exchange between processes."""
        moments = {name: moments.as_floats() for name, moments in self.moments.items()}
        totals = {name: float(total) for name, total in self.totals.items()}
        highest = {name: float(value) for name, value in self.highest.items() if value > -math.inf}
        counts = (self.completions, self.tokens)
        return _Records(moments, self.std_names, totals, dict(self.seconds), self.lowest, highest, *counts)

    def merge(self, other: "_Records") -> None:
        for name, moments in other.moments.items():
            self.moments[name].add(moments)
        for name, total in other.totals.items():
            self.totals[name] += total
        for name, seconds in other.seconds.items():
            self.seconds[name] += seconds
        for name, value in other.lowest.items():
            self.lowest[name] = min(value, self.lowest.get(name, value))
        for name, value in other.highest.items():
            self.highest[name] = max(value, self.highest.get(name, value))
        self.std_names |= other.std_names
        self.completions += other.completions
        self.tokens += other.tokens


class Metrics:
    """Collects values; `flush` returns them and starts again.

    Args:
        step (`int`): Optimizer steps done so far.
    """

    def __init__(self, step: int = 0) -> None:
        self._records = _Records()
        self._since = time.perf_counter()
        self._previous_step = step
        self._watched: dict[str, _Moments] = defaultdict(_Moments)

    def add_values(self, name: str, values: Tensor, std_name: str | None = None) -> None:
        """Adds values. Their mean is logged, and with `std_name` their population std. NaN values are skipped."""
        values = values.detach().double()
        values = values[~values.isnan()]
        self._records.moments[name].add(_Moments(values.sum(), values.square().sum(), values.numel()))
        if std_name is not None:
            self._records.std_names[name] = std_name

    def add_mean(self, name: str, total: float | Tensor, count: float | Tensor) -> None:
        """Adds a sum over `count` items. The mean over all items is logged."""
        self._records.moments[name].add(_Moments(total, 0.0, count))

    def add_watched_mean(self, name: str, total: float | Tensor, count: float | Tensor) -> None:
        """The same for a mean that is also judged by itself; see [`~Metrics.take_watched`]."""
        self.add_mean(name, total, count)
        self._watched[name].add(_Moments(total, 0.0, count))

    def take_watched(self, name: str) -> tuple[float, float]:
        """Returns the sum and the count of this process since the last call, whatever was logged in between."""
        taken = self._watched.pop(name, _Moments()).as_floats()
        return taken.total, taken.count

    def add_total(self, name: str, value: float | Tensor) -> None:
        """Adds a micro-batch's part of a sum over the optimizer step, such as the loss."""
        self._records.totals[name] = self._records.totals[name] + value

    def add_range(self, name: str, values: Tensor) -> None:
        """Adds values. Their minimum and maximum are logged as `name`, with "min" and "max" in place of `{}`."""
        if values.numel() == 0:
            return
        low, high = values.min().item(), values.max().item()
        low_name, high_name = name.format("min"), name.format("max")
        self._records.lowest[low_name] = min(low, self._records.lowest.get(low_name, low))
        self._records.highest[high_name] = max(high, self._records.highest.get(high_name, high))

    def add_max(self, name: str, value: Tensor) -> None:
        """Adds a scalar. The largest one is logged; -inf is ignored."""
        previous = self._records.highest.get(name)
        self._records.highest[name] = value if previous is None else torch.maximum(value, previous)

    def add_sampled(self, completions: int, tokens: int) -> None:
        """Adds what a rollout has sampled. Both are logged as sums, and the tokens per second."""
        self._records.completions += completions
        self._records.tokens += tokens

    @contextmanager
    def phase(self, name: str, within: str | None = None) -> Iterator[None]:
        """Times a phase of the step; `within` names the one that it interrupts, to which it does not count."""
        start = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            self._records.seconds[name] += seconds
            if within is not None:
                self._records.seconds[within] -= seconds

    @contextmanager
    def clock_stopped(self) -> Iterator[None]:
        """Excludes the time of the body, such as an evaluation, from the tokens per second."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._since += time.perf_counter() - start

    def flush(self, accelerator: Accelerator, step: int) -> dict[str, float]:
        """Returns the values of all processes since the last flush; every process calls it.

        Args:
            accelerator: Connects the processes.
            step (`int`): Optimizer steps done so far; totals and seconds are per step.
        """
        merged = _Records()
        for records in gather_object([self._records.as_floats()]):
            merged.merge(records)
        steps = max(step - self._previous_step, 1)
        elapsed = time.perf_counter() - self._since
        self._records, self._since, self._previous_step = _Records(), time.perf_counter(), step
        return _summary(merged, steps, elapsed, accelerator.num_processes)


def _summary(records: _Records, steps: int, elapsed: float, num_processes: int) -> dict[str, float]:
    values = {}
    for name, moments in records.moments.items():
        if moments.count == 0:
            continue
        values[name] = moments.mean
        if name in records.std_names:
            values[records.std_names[name]] = moments.std
    values |= {name: total / steps for name, total in records.totals.items()}
    values |= records.lowest | records.highest
    values |= {f"seconds/{name}": total / steps / num_processes for name, total in records.seconds.items()}
    if records.completions:
        values |= {"completions/count": records.completions, "completions/tokens": records.tokens}
    if records.tokens:
        values["tokens_per_second"] = records.tokens / elapsed
    return values


def token_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Returns the detached sum over the tokens of the mask; other tokens may be NaN."""
    return torch.where(mask.bool(), values.detach(), 0.0).sum()
