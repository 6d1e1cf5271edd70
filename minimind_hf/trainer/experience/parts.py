# SPDX-License-Identifier: Apache-2.0
"""Splits batches by tokens into as few parts as a budget allows, balanced by length, for the update and before it.

Completions of one prompt stay together if the budget allows, so that the prompt is computed once. Losses and gradients
of the parts add up to those of the whole batch, since the denominator is that of the optimizer step.
"""

import math
from collections.abc import Callable

from torch import Tensor

from .micro_batch import MicroBatch, part_of, put_rows

# On a CPU, computing more tokens at a time takes more memory and saves no time.
CPU_TOKENS = 1024


def split_by_tokens(
    batch: MicroBatch, max_tokens: int | None, whole_groups: bool = False, at_least: int = 1
) -> list[MicroBatch]:
    """Splits a micro-batch into parts of at most `max_tokens` tokens, a prompt counted once per part.

    Args:
        batch ([`MicroBatch`]): Rows of one prompt lie next to each other.
        max_tokens (`int`, *optional*): The budget; if unset, the batch stays whole. A completion that exceeds it alone
            becomes a separate part.
        whole_groups (`bool`): Whether all completions of a prompt stay together even if they exceed the budget, so
            that no prompt is computed twice.
        at_least (`int`): Minimum number of parts; at most the number of rows.

    Returns:
        `list[MicroBatch]`: The parts (see [`part_of`]). Empty batches stay as they are.
    """
    if max_tokens is None or len(batch) == 0:
        return [batch]
    units = _units(batch, math.inf if whole_groups else max_tokens)
    return [part_of(batch, rows) for rows in _split_further(_balanced(units, max_tokens), at_least)]


def score_in_parts(
    batch: MicroBatch, split: Callable[[MicroBatch], list[MicroBatch]], score: Callable[[MicroBatch], Tensor]
) -> Tensor:
    """Computes one number per token of a batch, such as logps or values, part by part.

    Args:
        batch ([`MicroBatch`]): N completions of at most C tokens.
        split (`Callable`): Splits a batch into parts.
        score (`Callable`): Computes a tensor of shape `(N, C)` from a batch or a part.

    Returns:
        `Tensor` of shape `(N, C)`; if the batch was split, 0 where there is no token.
    """
    parts = split(batch)
    if len(parts) == 1:
        return score(batch)
    whole = None
    for part in parts:
        computed = score(part)
        whole = computed.new_zeros(len(batch), batch.width) if whole is None else whole
        put_rows(whole, part.rows_in_whole, computed)
    return whole


def _units(batch: MicroBatch, max_tokens: float) -> list[tuple[int, list[int]]]:
    """Splits groups into units `(tokens, rows)` within the budget, in order."""
    units = []
    for members in batch.groups():
        rows: list[int] = []
        tokens = 0
        for row in members:
            length = len(batch.completion_ids[row])
            if rows and tokens + length > max_tokens:
                units.append((tokens, rows))
                rows, tokens = [], 0
            tokens += length + (0 if rows else len(batch.prompt_ids[row]))
            rows.append(row)
        units.append((tokens, rows))
    return units


def _balanced(units: list[tuple[int, list[int]]], max_tokens: int) -> list[list[int]]:
    """Distributes the units over as few parts as possible: the largest first, each to the emptiest part."""
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
    """Halves the parts with the most rows until there are `count`; they stay within the budget."""
    parts = [sorted(rows) for rows in parts]
    while len(parts) < count:
        longest = max(parts, key=len)
        parts.remove(longest)
        half = len(longest) // 2
        parts += [longest[:half], longest[half:]]
    return parts
