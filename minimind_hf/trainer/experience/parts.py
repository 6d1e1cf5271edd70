# SPDX-License-Identifier: Apache-2.0
"""Batches by tokens: completions in as few parts as fit a budget, balanced by length, in the update and before it.

Completions of one prompt stay together where the budget allows, so that the prompt is computed once. Losses and
gradients of the parts add up to those of the whole, since the denominator is that of the optimizer step.
"""

import math
from collections.abc import Callable
from itertools import groupby

import torch
from torch import Tensor

from .micro_batch import MicroBatch, put_rows, select_rows

# On a CPU, larger matrices than those of so many tokens are multiplied no faster, but take more memory.
CPU_TOKENS = 1024


def split_by_tokens(
    batch: MicroBatch, max_tokens: int | None, whole_groups: bool = False, at_least: int = 1
) -> list[MicroBatch]:
    """Splits a padded micro-batch into parts of at most `max_tokens` real tokens, a prompt counted once per part.

    Args:
        batch (`dict[str, Tensor]`): Padded, rows of one prompt next to each other.
        max_tokens (`int`, *optional*): The budget; unset, the batch stays whole. A completion that alone exceeds it
            makes a part of its own.
        whole_groups (`bool`): Whether all completions of a prompt stay together even where they exceed the budget, so
            that no prompt is computed twice.
        at_least (`int`): Parts to make though fewer would do; no more than rows.

    Returns:
        `list[dict[str, Tensor]]`: The parts, without columns that are padding in all their rows, and each with
        `share`, its part of the rows, and `local_tokens`, what the loss sees of the whole batch. Empty batches stay as
        they are.
    """
    if max_tokens is None or not batch:
        return [batch]
    prompts = batch["prompt_mask"].sum(dim=1).tolist()
    completions = batch["completion_mask"].sum(dim=1).tolist()
    largest_unit = math.inf if whole_groups else max_tokens
    units = _units(batch["group_ids"].tolist(), prompts, completions, largest_unit)
    parts = _split_further(_balanced(units, max_tokens), at_least)
    return [_part(batch, rows) for rows in parts]


def score_in_parts(
    batch: MicroBatch, split: Callable[[MicroBatch], list[MicroBatch]], score: Callable[[MicroBatch], Tensor]
) -> Tensor:
    """Scores the tokens of a batch in the parts that `split` makes of it.

    Args:
        batch (`dict[str, Tensor]`): Padded.
        split (`Callable`): From a batch to its parts.
        score (`Callable`): From a batch to a tensor of the shape of its completions.

    Returns:
        `Tensor` of the shape of the batch's completions; 0 where they are padded, if it was split.
    """
    rows = torch.arange(len(batch["group_ids"]), device=batch["group_ids"].device)
    parts = split(batch | {"position": rows})
    if len(parts) == 1:
        return score(batch)
    scored = None
    for part in parts:
        scores = score(part)
        scored = scores.new_zeros(batch["completion_mask"].shape) if scored is None else scored
        put_rows(scored, part["position"].tolist(), scores)
    return scored


def _units(groups: list[int], prompts: list[int], completions: list[int], max_tokens: float) -> list[tuple[int, list]]:
    """Cuts groups into `(tokens, rows)` that fit the budget, in order."""
    units = []
    for _, members in groupby(range(len(groups)), key=groups.__getitem__):
        rows: list[int] = []
        tokens = 0
        for row in members:
            if rows and tokens + completions[row] > max_tokens:
                units.append((tokens, rows))
                rows, tokens = [], 0
            tokens += completions[row] + (0 if rows else prompts[row])
            rows.append(row)
        units.append((tokens, rows))
    return units


def _balanced(units: list[tuple[int, list[int]]], max_tokens: int) -> list[list[int]]:
    """Deals the units out, the largest first and each to the emptiest part, over the fewest parts that hold them."""
    total = sum(tokens for tokens, _ in units)
    by_size = sorted(units, key=lambda unit: -unit[0])
    for count in range(max(1, -(-total // max_tokens)), len(units) + 1):
        loads, parts = [0] * count, [[] for _ in range(count)]
        for tokens, rows in by_size:
            emptiest = loads.index(min(loads))
            loads[emptiest] += tokens
            parts[emptiest] += rows
        if max(loads) <= max_tokens or count == len(units):
            return [rows for rows in parts if rows]
    return [rows for _, rows in units]


def _split_further(parts: list[list[int]], count: int) -> list[list[int]]:
    """Halves the parts of most rows until there are `count`; what fitted the budget still does."""
    parts = [sorted(rows) for rows in parts]
    while len(parts) < count:
        longest = max(parts, key=len)
        parts.remove(longest)
        half = len(longest) // 2
        parts += [longest[:half], longest[half:]]
    return parts


def _part(batch: MicroBatch, rows: list[int]) -> MicroBatch:
    share = torch.tensor(len(rows) / len(batch["group_ids"]), device=batch["group_ids"].device)
    return select_rows(batch, rows) | {"share": share, "local_tokens": batch["loss_mask"].sum()}
