# SPDX-License-Identifier: Apache-2.0
"""Looks at what was drawn, without making the device wait for the host.

The copies to the host are queued after the drawing, and an event after the copies says when they have arrived. A host
that comes back later finds them without waiting.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from .draws import Drawn
from .truncated import KeptSets

BLOCK = 8  # tokens between two looks at what a GPU has drawn


def pace(device: torch.device, drafts: bool) -> dict[str, int]:
    """How often a scheduler looks: on a CPU it costs nothing, and a draft begins where the last token is known."""
    if drafts or device.type == "cpu":
        return {"block_size": 1, "blocks_ahead": 0}
    return {"block_size": BLOCK, "blocks_ahead": 1 if device.type == "cuda" else 0}


class Look:
    """The tokens that a batch has drawn in some steps, on their way to the host.

    Args:
        block (`Sequence[Drawn]`): One per step, all of the same rows.
    """

    def __init__(self, block: Sequence[Drawn]):
        device = block[0].token_ids.device
        self.token_ids = _to_host(torch.stack([drawn.token_ids for drawn in block], dim=1))
        self.logprobs = _to_host(torch.stack([drawn.logprobs for drawn in block], dim=1))
        self.kept = [None if drawn.kept is None else _sets_to_host(drawn.kept) for drawn in block]
        self.event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self.event = torch.cuda.Event()
            self.event.record()

    def is_there(self) -> bool:
        """Whether everything has arrived."""
        return self.event is None or self.event.query()

    def take(self) -> Iterator[tuple[list[int], list[float], Sequence[np.ndarray] | None]]:
        """Returns the ids, log-probabilities and sets of each row. Waits until they have arrived."""
        if self.event is not None:
            self.event.synchronize()
        token_ids, logprobs = self.token_ids.tolist(), self.logprobs.tolist()
        if self.kept[0] is None:
            return zip(token_ids, logprobs, [None] * len(token_ids), strict=True)
        sets = zip(*(kept.to_host() for kept in self.kept), strict=True)
        return zip(token_ids, logprobs, sets, strict=True)


def _to_host(tensor: Tensor) -> Tensor:
    """A copy on the host, which is there when an event says so; of a tensor on a CPU itself."""
    if tensor.device.type != "cuda":
        return tensor.cpu()
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return pinned.copy_(tensor, non_blocking=True)


def _sets_to_host(sets: KeptSets) -> KeptSets:
    return KeptSets(*(None if each is None else _to_host(each) for each in (sets.counts, sets.ids, sets.bits)))
