# SPDX-License-Identifier: Apache-2.0
"""The metrics of a run as its checks read them: log by log."""

from collections.abc import Mapping, Sequence


class Curves:
    """The metrics of a run, log by log."""

    def __init__(self, logs: Sequence[Mapping[str, float]] = ()):
        self._values: dict[str, list[float]] = {}
        for log in logs:
            self.add(log)

    def add(self, log: Mapping[str, float]) -> None:
        for name, value in log.items():
            if isinstance(value, int | float):
                self._values.setdefault(name, []).append(float(value))

    def count(self, name: str) -> int:
        return len(self._values.get(name, ()))

    def first(self, name: str, number: int) -> list[float]:
        """The first `number` values of a metric; an empty list if there are fewer."""
        return self._values[name][:number] if self.count(name) >= number > 0 else []

    def last(self, name: str, number: int) -> list[float]:
        """The last `number` values of a metric; an empty list if there are fewer."""
        return self._values[name][-number:] if self.count(name) >= number > 0 else []
