# SPDX-License-Identifier: Apache-2.0
"""Causal attention of one long sequence after a prefix, for CPUs: a block of queries and one key head at a time.

The keys of prefix and sequence lie next to each other, so that every product of a block reads and writes whole
contiguous matrices: scores, weights and their gradients are never copied. A block multiplies only the keys up to its
last query. The backward pass computes the weights again. Scores and softmax use float32 in reduced precision too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .lean import product

QUERIES_PER_BLOCK = 128


@dataclass
class LongSequence:
    """A sequence after a prefix. Each of its tokens attends to the prefix and to the sequence up to itself.

    Args:
        prefix (`slice`), tokens (`slice`): Their positions in the row of all keys; the prefix may be empty.
        queries (`slice`): Positions of the sequence's queries in the row of all queries.
        places (`Sequence[int]`): The tokens of the sequence that the queries belong to, in order.
    """

    prefix: slice
    tokens: slice
    queries: slice
    places: Sequence[int]


@dataclass
class _Block:
    """Some queries of a sequence, whose last one attends to the first `end` keys.

    Args:
        queries (`slice`): Their positions in the row of all queries.
        end (`int`): Keys that any of them attends to.
        hides (`Tensor` of shape `(queries, keys that not all attend to)`): 0, or minus infinity at later keys.
    """

    queries: slice
    end: int
    hides: Tensor


class LongInputs:
    """The inputs of one sequence: query `(heads, Q, dim)`; key and value `(K, T, dim)`, contiguous."""

    def __init__(self, span: LongSequence, query: Tensor, key: Tensor, value: Tensor, scaling: float):
        self.span, self.scaling, self.query = span, scaling, query
        self.dtype, self.wide = query.dtype, torch.promote_types(query.dtype, torch.float32)
        self.keys, self.values = (self._context(states) for states in (key, value))
        self.wide_keys = self.keys.to(self.wide)
        self.queries_per_key = query.shape[0] // key.shape[0]

    def _context(self, states: Tensor) -> Tensor:
        prefix, tokens = self.span.prefix, self.span.tokens
        if prefix.stop == tokens.start:
            return states[:, prefix.start : tokens.stop]
        return torch.cat([states[:, prefix], states[:, tokens]], dim=1)

    def write_output(self, output: Tensor) -> None:
        """Writes the attention output of the queries, `(heads, Q, width)`."""
        for block in self._blocks():
            scaled = self._rows(self.query, block).to(self.wide) * self.scaling
            for head, queries in enumerate(scaled):
                weights = self._weights(queries, block, head).to(self.dtype)
                read = product(weights, self.values[head, : block.end].t())
                output[self._heads(head), block.queries] = self._by_head(read)

    def add_gradients(self, grad: Tensor, grad_query: Tensor, grad_key: Tensor, grad_value: Tensor) -> None:
        """Adds the gradients of queries, keys and values to those of the rows."""
        of_keys, of_values = (torch.zeros_like(each, dtype=self.wide) for each in (self.keys, self.values))
        for block in self._blocks():
            queries, grads = self._rows(self.query, block), self._rows(grad, block)
            scaled = queries.to(self.wide) * self.scaling
            for head in range(len(self.keys)):
                keys, values = self.keys[head, : block.end], self.values[head, : block.end]
                weights = self._weights(scaled[head], block, head)
                slopes = product(grads[head], values).to(self.wide)
                slopes = torch._softmax_backward_data(slopes, weights, -1, self.wide).to(self.dtype)
                grad_queries = product(slopes, keys.t()).mul_(self.scaling)
                grad_query[self._heads(head), block.queries] = self._by_head(grad_queries)
                of_keys[head, : block.end] += product(slopes.t(), queries[head].t()).mul_(self.scaling)
                of_values[head, : block.end] += product(weights.to(self.dtype).t(), grads[head].t())
        prefix, tokens = self.span.prefix, self.span.tokens
        length = prefix.stop - prefix.start
        for total, own in ((grad_key, of_keys), (grad_value, of_values)):
            total[:, prefix] += own[:, :length]
            total[:, tokens] += own[:, length:]

    def _blocks(self) -> Iterator[_Block]:
        places = torch.tensor(self.span.places) + self.span.prefix.stop - self.span.prefix.start
        for begin in range(0, len(places), QUERIES_PER_BLOCK):
            some = places[begin : begin + QUERIES_PER_BLOCK]
            end = int(some[-1]) + 1
            later = torch.arange(int(some[0]) + 1, end) > some[:, None]
            hides = torch.zeros(later.shape, dtype=self.wide).masked_fill_(later, float("-inf"))
            start = self.span.queries.start + begin
            yield _Block(slice(start, start + len(some)), end, hides.to(self.query.device))

    def _weights(self, queries: Tensor, block: _Block, head: int) -> Tensor:
        """Attention weights `(R, end)` of the R scaled queries of a block whose heads share this key head."""
        scores = product(queries, self.wide_keys[head, : block.end])
        not_for_all = block.hides.shape[1]
        self._by_head(scores)[..., block.end - not_for_all :].add_(block.hides)
        return scores.softmax(dim=-1)

    def _heads(self, head: int) -> slice:
        return slice(head * self.queries_per_key, (head + 1) * self.queries_per_key)

    def _rows(self, of_heads: Tensor, block: _Block) -> Tensor:
        """`(heads, Q, dim)` -> `(K, R, dim)`, contiguous; R rows are the queries of one head after the other."""
        return of_heads[:, block.queries].reshape(len(self.keys), -1, of_heads.shape[-1])

    def _by_head(self, rows: Tensor) -> Tensor:
        """`(R, n)` -> `(R / queries, queries, n)`, a view."""
        return rows.unflatten(0, (self.queries_per_key, -1))
