# SPDX-License-Identifier: Apache-2.0
"""What a scheduler asks of a model: groups, which are prompts that were computed, and rows, which continue them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .draws import Drawer, Drawn


class Decoder(ABC):
    """A model with the keys and values of its prompts and rows.

    Attributes:
        can_refill (`bool`): Whether prompts and rows can be added while others run. If not, they are added only to an
            empty batch, and groups are never split.
        device (`torch.device`): The device of the logits.
        draws (`bool`): Whether [`step_and_draw`] is one piece, which is taken wherever tokens are drawn after a step.
        logits (`Tensor` of shape `(rows, vocab)`): Of the last [`step_and_draw`].
    """

    can_refill: bool
    device: torch.device
    draws: bool = False
    logits: Tensor

    @abstractmethod
    def prefill(self, prompt_ids: Sequence[Sequence[int]]) -> Tensor:
        """Computes prompts as new groups, whose numbers follow the last one.

        Returns:
            `Tensor` of shape `(prompts, vocab)`: The logits of the first token of their completions.
        """

    @abstractmethod
    def start_rows(self, groups: Sequence[int]) -> None:
        """Appends one row per entry to the batch. Each continues the prompt of its group."""

    @abstractmethod
    def step(self, token_ids: Tensor) -> Tensor:
        """Appends a token to every row.

        Returns:
            `Tensor` of shape `(rows, vocab)`: The logits of the next token.
        """

    def step_and_draw(self, token_ids: Tensor, draw: Drawer) -> Drawn:
        """Appends a token to every row and draws the next ones. The logits stay in `logits` until the next step."""
        self.logits = self.step(token_ids)
        return draw(self.logits)

    @abstractmethod
    def reorder(self, rows: Sequence[int]) -> None:
        """Replaces row `i` by row `rows[i]`. Rows that are not listed are removed."""

    def park(self, rows: Sequence[int], excess: Sequence[int]) -> list[Any]:
        """Copies the keys and values of rows, which stay in the batch, so that they can go on later.

        Args:
            rows (`Sequence[int]`): Their numbers.
            excess (`Sequence[int]`): How many of the last tokens of each do not belong to it.

        Returns:
            `list`: One state per row, for [`Decoder.extend`]; the groups of these rows must not be released.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot put rows aside, so it cannot play episodes.")

    def extend(self, parked: Sequence[Any], token_ids: Sequence[Sequence[int]]) -> Tensor:
        """Appends rows that were put aside to the batch, each followed by tokens.

        Args:
            parked (`Sequence`): States from [`Decoder.park`], one per row.
            token_ids (`Sequence[Sequence[int]]`): At least one token for each, whose numbers may differ.

        Returns:
            `Tensor` of shape `(parked rows, vocab)`: The logits of the token after the last.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot put rows aside, so it cannot play episodes.")

    def append(self, token_ids: Sequence[Sequence[int]]) -> Tensor:
        """Appends tokens to every row.

        Args:
            token_ids (`Sequence[Sequence[int]]`): At least one token for each row, whose numbers may differ.

        Returns:
            `Tensor` of shape `(tokens of all rows, vocab)`: The logits after every token, one row after the other.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot score several positions of a row at once.")

    def cut(self, counts: Sequence[int]) -> None:
        """Forgets this many of the last tokens of each row."""
        raise NotImplementedError(f"{type(self).__name__} cannot forget tokens.")

    def release(self, groups: Sequence[int]) -> None:  # noqa: B027 - a decoder that keeps no groups has nothing to do
        """Forgets prompts that no row continues or will continue."""
