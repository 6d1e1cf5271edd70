# SPDX-License-Identifier: Apache-2.0
"""Text while it is decoded: split into thought and answer, and the token ids that it was decoded from."""

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase, TextStreamer

from ..inference import Piece, ThoughtSplitter


class PieceStreamer(TextStreamer):
    """Passes on text while it is decoded, split into thought and answer.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): Decodes.
        show (`Callable[[Piece], None]`): Called with each piece.
        inside (`bool`): Whether the prompt has opened a thought.
        unspoken (`frozenset[int]`): Ids that are no text.

    Attributes:
        ids (`list[int]`): What was decoded so far, EOS included.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        show: Callable[[Piece], None],
        inside: bool,
        unspoken: frozenset[int],
    ):
        super().__init__(tokenizer, skip_prompt=True)
        self.ids: list[int] = []
        self._show, self._unspoken = show, unspoken
        self._splitter = ThoughtSplitter(inside)

    def put(self, value: Tensor) -> None:
        if not self.next_tokens_are_prompt:
            drawn = value.flatten().tolist()
            self.ids += drawn
            # Not by `skip_special_tokens`, which leaves out tags that are special tokens too.
            value = torch.tensor([token for token in drawn if token not in self._unspoken])
        if value.numel():
            super().put(value)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        pieces = list(self._splitter.feed(text))
        if stream_end:
            pieces += self._splitter.end()
        for piece in pieces:
            self._show(piece)
