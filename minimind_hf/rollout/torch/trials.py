# SPDX-License-Identifier: Apache-2.0
"""What is tried with a model before any training."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class ShortSession:
    """Answers the first turn with one token, and ends after the second."""

    prompt_ids: list[int]
    token: int
    row: dict[str, Any] = field(default_factory=dict)
    turns: int = 0

    def observe(self, ids: list[int], finish_reason: str) -> list[int] | None:
        self.turns += 1
        return [self.token] if self.turns == 1 else None
