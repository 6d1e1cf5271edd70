# SPDX-License-Identifier: Apache-2.0
"""An episode while it is played: what was drawn and answered so far, and how many tokens there may still be."""

import numpy as np

from .samples import Rollout, SamplingParams

_NO_SET = np.empty(0, dtype=np.int32)  # of a token that the policy did not choose


class Transcript:
    """The tokens of one episode: turn 1, answer 1, turn 2 and so on.

    Args:
        sampling ([`SamplingParams`]): `max_completion_length` counts all tokens, `max_turn_length` those of a turn.

    Attributes:
        finish_reason (`str`, *optional*): Why the episode has ended; unset while it goes on.
    """

    def __init__(self, sampling: SamplingParams):
        self.sampling = sampling
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.loss_mask: list[int] = []
        self.kept: list[np.ndarray] | None = [] if sampling.is_truncated else None
        self.finish_reason: str | None = None
        self._last_turn = "stop"

    @property
    def room(self) -> int:
        """Most tokens of the next turn."""
        left = self.sampling.max_completion_length - len(self.ids)
        return left if self.sampling.max_turn_length is None else min(left, self.sampling.max_turn_length)

    def add_turn(
        self,
        ids: list[int],
        logprobs: list[float],
        finish_reason: str,
        loss_mask: list[int] | None = None,
        kept: list[np.ndarray] | None = None,
    ) -> None:
        self.ids += ids
        self.logprobs += logprobs
        self.loss_mask += [1] * len(ids) if loss_mask is None else loss_mask
        if kept is not None and self.kept is None:
            self.kept = [_NO_SET] * (len(self.ids) - len(ids))
        if self.kept is not None:
            self.kept += [_NO_SET] * len(ids) if kept is None else kept
        self._last_turn = finish_reason

    def answer(self, ids: list[int] | None) -> bool:
        """Takes what a session answered to the last turn.

        Returns:
            `bool`: Whether the episode goes on. If so, the answer was appended.

        Raises:
            TypeError: If the answer is neither a list of token ids nor `None`.
        """
        if self._last_turn == "length":
            self.finish_reason = "length"
        elif ids is None:
            self.finish_reason = "stop"
        elif len(self.ids) + len(_checked(ids)) >= self.sampling.max_completion_length:
            self.finish_reason = "length"
        else:
            self.ids += ids
            self.logprobs += [0.0] * len(ids)
            self.loss_mask += [0] * len(ids)
            if self.kept is not None:
                self.kept += [_NO_SET] * len(ids)
        return self.finish_reason is None

    def rollout(self, weights_version: int) -> Rollout:
        """Returns the episode, which has ended."""
        return Rollout(self.ids, self.logprobs, self.finish_reason, self.loss_mask, weights_version, self.kept)


def _checked(ids: object) -> list[int]:
    if not isinstance(ids, list) or not all(isinstance(token, int) and token >= 0 for token in ids):
        raise TypeError(
            f"observe returned {ids!r:.80}, expected a list of token ids, or None at the end of the episode."
        )
    return ids
