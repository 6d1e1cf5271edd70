# SPDX-License-Identifier: Apache-2.0
"""Where the prompts and completions of a row of tokens are, and which of its tokens attend to which.

A prompt attends causally to itself, a completion to its prompt and causally to itself. In layers with a sliding window
a token sees the last `window` tokens of its own sequence, which begins with its prompt, the token itself counted.
Everything is computed on the host from lengths, and what attention needs of it is kept for all layers of a pass.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from .flex import FlexMask, Sequences, flex_mask
from .on_device import on_device


@dataclass
class Group:
    """One prompt, followed by its completions one after the other.

    Args:
        prompt_length (`int`): Tokens of the prompt.
        lengths (`list[int]`): Tokens of each of its G completions; those without tokens here are left out.
        gather (`Tensor` of shape `(G, longest)`, *optional*): Index of each completion's tokens among the tokens of
            all completions, padded with 0; `None` if they have equal lengths and no gathering is needed.
        scatter (`Tensor`, *optional*): Index of each token in the flattened `gather`.
    """

    prompt_length: int
    lengths: list[int]
    gather: Tensor | None
    scatter: Tensor | None

    @property
    def count(self) -> int:
        return len(self.lengths)

    @property
    def longest(self) -> int:
        return max(self.lengths, default=0)

    @property
    def completions_length(self) -> int:
        return sum(self.lengths)

    def masks(self, window: int | None, device: torch.device) -> tuple[Tensor | None, Tensor]:
        """What the prompt's tokens and those of its completions attend to.

        Returns:
            `(prompt, completions)`: `(prompt, prompt)`, `None` if it is causal and nothing else; and
            `(longest, prompt + longest)`.
        """
        prompt, longest = self.prompt_length, self.longest
        completions = torch.ones(longest, prompt + longest, dtype=torch.bool, device=device).tril(diagonal=prompt)
        if window is None:
            return None, completions
        completions = completions.triu(diagonal=prompt - window + 1)
        if window >= prompt:
            return None, completions
        causal = torch.ones(prompt, prompt, dtype=torch.bool, device=device).tril()
        return causal.triu(diagonal=1 - window), completions


@dataclass
class RowLayout:
    """The groups of a row, and what attention needs of them: built once for all layers of the same kind.

    Args:
        groups (`list[Group]`): In the order of the row.
        device (`torch.device`): Of the row.
        read (`list[list[Sequence[int]]]`): Of each group, of its prompt and each completion, the tokens whose output
            the last layer has to compute: those that predict a scored token, and all of a short completion.
        windows_seen (`list`): The sliding window of each attention that was computed, in order, `None` for none.
    """

    groups: list[Group]
    device: torch.device
    read: list[list[Sequence[int]]] = field(default_factory=list)
    windows_seen: list[int | None] = field(default_factory=list)
    _masks: dict = field(default_factory=dict, repr=False)
    _flex: dict = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, lengths: Sequence[tuple[int, list[int]]], device: torch.device) -> "RowLayout":
        """From the lengths of each prompt and of its completions; completions without tokens are left out."""
        return cls(
            [_group(prompt, [each for each in of_prompt if each], device) for prompt, of_prompt in lengths], device
        )

    @property
    def longest_context(self) -> int:
        return max(group.prompt_length + group.longest for group in self.groups)

    def saw(self, windows: Sequence[int | None]) -> bool:
        """Whether attention was computed with these windows, layer by layer; how often is of no account without
        any."""
        return self.windows_seen == list(windows) if any(windows) else not any(self.windows_seen)

    def hides(self, window: int | None) -> int | None:
        """The window, or `None` where it is too long to hide anything."""
        return window if window is not None and window < self.longest_context else None

    def masks(self, window: int | None) -> list[tuple[Tensor | None, Tensor]]:
        """[`Group.masks`] of every group."""
        if window not in self._masks:
            self._masks[window] = [group.masks(window, self.device) for group in self.groups]
        return self._masks[window]

    def flex(self, window: int | None) -> FlexMask:
        """The same for FlexAttention."""
        if window not in self._flex:
            self._flex[window] = flex_mask(self._sequences(), window, self.device)
        return self._flex[window]

    def _sequences(self) -> Sequences:
        sequences = Sequences()
        for prompt_start, group in self._starts():
            sequences.add(group.prompt_length, prompt_start, 0)
            for length in group.lengths:
                sequences.add(length, prompt_start, group.prompt_length)
        return sequences

    def _starts(self) -> Iterator[tuple[int, Group]]:
        start = 0
        for group in self.groups:
            yield start, group
            start += group.prompt_length + group.completions_length


def _group(prompt_length: int, lengths: list[int], device: torch.device) -> Group:
    if len(set(lengths)) <= 1:
        return Group(prompt_length, lengths, None, None)
    counts, longest = np.array(lengths), max(lengths)
    within = np.arange(longest) < counts[:, None]
    starts = counts.cumsum() - counts
    gather = np.where(within, starts[:, None] + np.arange(longest), 0)
    return Group(prompt_length, lengths, on_device(gather, device), on_device(np.flatnonzero(within), device))
