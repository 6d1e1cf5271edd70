# SPDX-License-Identifier: Apache-2.0
"""The contract of somebody who looks at completions while others are still being drawn, and may ask for more."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .samples import Rollout
from .session import Session


class Refill(Protocol):
    """Asks a running request for more. Both methods are called by the thread that called the engine."""

    def finished(self, number: int, rollout: Rollout) -> None:
        """Takes a completion that has ended, once each, in any order.

        Args:
            number (`int`): Its place in what the engine returns; what is asked for later follows.
            rollout (`Rollout`): The completion or episode.
        """

    def further(self, waits: bool) -> Sequence[list[int]] | Sequence[Session]:
        """What is to be drawn too. An engine asks at every look at its completions, until all have ended.

        Args:
            waits (`bool`): Whether to wait for whatever decides it. Without, the answer may be that nothing is known
                yet; an engine with nothing left to draw asks with it.

        Returns:
            For `generate`, tokens of prompts, each to be completed `num_generations` times; for `converse`, sessions.
        """


def takes_refill(draw: Callable[..., Any] | None) -> bool:
    """Whether a method of an engine has the parameter `refill`."""
    return draw is not None and "refill" in inspect.signature(draw).parameters
