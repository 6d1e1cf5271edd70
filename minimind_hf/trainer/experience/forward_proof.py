# SPDX-License-Identifier: Apache-2.0
"""Before the first update on a device, a run compares the layout and kernels of its forward pass with the plain ones.

Like the audit of episodes it takes tokens of the run itself: a few completions of the first rollout, which are cut, so
that the padded layout has room for them. All processes decide alike.
"""

from collections.abc import Callable, Sequence

import torch
from torch import nn
from transformers.utils import logging

from ...forward.introspection import unwrap
from ...forward.lean import restore_forwards
from ...forward.proof import Finding, found_by
from ...forward.token_batch import TokenBatch
from ...rollout.agreement import gather, rank
from ..settings.base import RLConfig

logger = logging.get_logger(__name__)

MOST_GROUPS, ROWS_EACH = 2, 2
MOST_TOKENS = 128  # of a completion
MOST_LOGITS = 2**26  # of all of them in the padded layout: 256 MiB in float32


def few_completions(batch: TokenBatch, vocab_size: int) -> TokenBatch:
    """The shortest and the longest completion of some prompts, cut to so many tokens that their logits are few."""
    rows = [row for group in batch.groups()[:MOST_GROUPS] for row in _unequal(group, batch)]
    length = max(1, min(MOST_TOKENS, MOST_LOGITS // (len(rows) * vocab_size)))
    return TokenBatch(
        prompt_ids=[batch.prompt_ids[row] for row in rows],
        completion_ids=[batch.completion_ids[row][:length] for row in rows],
        group_ids=[batch.group_ids[row] for row in rows],
        device=batch.device,
        kept=None if batch.kept is None else [batch.kept[row].take(slice(length)) for row in rows],
    )


def _unequal(rows: Sequence[int], batch: TokenBatch) -> list[int]:
    by_length = sorted(rows, key=lambda row: len(batch.completion_ids[row]))
    return sorted({by_length[0], by_length[-1]} if len(rows) > ROWS_EACH else rows)


def computing_dtype(args: RLConfig, model: nn.Module) -> torch.dtype:
    """What the products of a forward pass are computed in."""
    if args.bf16 or args.fp16:
        return torch.bfloat16 if args.bf16 else torch.float16
    return unwrap(model).dtype


class ForwardProof:
    """Asks whether the forward pass of the update holds on this device.

    Args:
        mode (`str`): The setting `verify_fast_paths`.
        device (`torch.device`): Of the update.
        whose (`str`): The forward passes of what are judged, in the line that says so.
    """

    def __init__(self, mode: str, device: torch.device, whose: str = "Updates of"):
        self._mode, self._device, self._whose = mode, device, whose
        self._is_due = mode == "always" or (mode == "first" and device.type != "cpu")
        self._is_said = False

    @property
    def is_due(self) -> bool:
        return self._is_due

    def holds(self, model: nn.Module, layout: str, compare: Callable[[], Finding]) -> bool:
        """Compares, and says in one line what was found; every process calls it and gets the same answer.

        Args:
            model (`nn.Module`): For its name.
            layout (`str`): The layout that is compared.
        """
        own = found_by(compare)
        faults = [fault for fault in gather(own.fault) if fault]
        self._is_due = self._mode == "always" and not faults
        if rank() == 0:
            self._say(type(unwrap(model)).__name__, layout, own, faults)
        return not faults

    def _say(self, name: str, layout: str, own: Finding, faults: list[str]) -> None:
        if faults:
            logger.warning(
                "%s %s on %s use the plain layout and modules: the %s layout and lean modules differ (%s).",
                *(self._whose, name, self._device, layout, faults[0]),
            )
        elif not self._is_said:
            logger.warning(
                "%s %s on %s use the %s layout, which equals the plain forward (%s).",
                *(self._whose, name, self._device, layout, own.largest),
            )
            self._is_said = True


def use_plain_modules(*models: nn.Module) -> None:
    """Makes all modules compute by their own forwards."""
    for model in models:
        restore_forwards(model)
