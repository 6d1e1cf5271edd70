# SPDX-License-Identifier: Apache-2.0
"""Attention in the shared-prompt layout as a few large matrix products, for long sequences on CPUs.

torch's fused attention processes the keys tile by tile, with many small MKL products, and needs the prompt's keys and
values once per completion and query head. Here one oneDNN product multiplies the queries of all completions, and of
all heads that share keys, with the prompt's keys. Only queries, keys and values are kept for the backward pass, which
recomputes the attention weights. The weights are processed in blocks, so memory does not grow with the square of the
sequence length. On an AMD EPYC this takes two thirds of the time of fused attention at contexts of 576 tokens, the
same time at 256, and more below; in bfloat16 it is already faster at 256. See [`pays_off`]. Prompts and long
completions are computed one by one, by [`LongInputs`].

Scores and softmax use float32 in reduced precision too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from .lean import product
from .long_attention import LongInputs, LongSequence

LONG_SEQUENCE = 128  # tokens of a completion that is still computed together with others
MAX_WEIGHTS = 2**20  # attention weights computed at a time: 4 MiB in float32
LONG_CONTEXT = 384  # tokens; half of that in reduced precision, where the backward pass of fused attention is slow


@dataclass
class Span:
    """Sequences of equal length after a common prefix; each attends to the prefix and causally to itself.

    Args:
        prefix (`slice`): Positions of the prefix in the row of all keys.
        tokens (`slice` or `Tensor` of shape `(count * length,)`): Positions of the sequences there, one sequence after
            the other.
        queries (`slice` or `Tensor` of shape `(count * length,)`): The same in the row of all queries.
        count (`int`), length (`int`): Number of sequences, and tokens of each.
        filled (`Tensor` of shape `(count * length,)`, *optional*): 0 where a shorter sequence is padded, else 1.
    """

    prefix: slice
    tokens: slice | Tensor
    queries: slice | Tensor
    count: int
    length: int
    filled: Tensor | None = None


class _BlockAttention(torch.autograd.Function):
    """query `(heads, Q, dim)`, key `(kv_heads, T, dim)`, value `(kv_heads, T, width)` -> `(heads, Q, width)`."""

    @staticmethod
    def forward(ctx, query, key, value, spans, scaling):
        key, value = key.contiguous(), value.contiguous()
        output = query.new_empty(*query.shape[:2], value.shape[-1])
        for span in spans:
            _inputs(span, query, key, value, scaling).write_output(output)
        ctx.save_for_backward(query, key, value)
        ctx.spans, ctx.scaling = spans, scaling
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        query, key, value = ctx.saved_tensors
        grads = [torch.zeros_like(states, memory_format=torch.contiguous_format) for states in (query, key, value)]
        with torch.autocast("cpu", enabled=False):
            for span in ctx.spans:
                _inputs(span, query, key, value, ctx.scaling).add_gradients(grad, *grads)
        return *grads, None, None


def _inputs(span: Span | LongSequence, *states_and_scaling) -> "_Inputs | LongInputs":
    return (LongInputs if isinstance(span, LongSequence) else _Inputs)(span, *states_and_scaling)


class _Inputs:
    """The inputs of one span: R = count x query heads per key head x length queries for each of K key heads."""

    def __init__(self, span: Span, query: Tensor, key: Tensor, value: Tensor, scaling: float):
        self.span, self.scaling = span, scaling
        self.kv_heads, self.dtype = key.shape[0], query.dtype
        self.wide = torch.promote_types(query.dtype, torch.float32)
        self.prefix_key, self.prefix_value = (states[:, span.prefix] for states in (key, value))
        self.own_key, self.own_value = (self._by_sequence(states[:, span.tokens]) for states in (key, value))
        self.query = self.to_rows(query[:, span.queries])
        self.prefix_length = self.prefix_key.shape[1]

    def write_output(self, output: Tensor) -> None:
        """Writes the attention output of the queries, `(heads, Q, width)`."""
        _put(output, self.span, self.to_heads(self.read(self.weights())))

    def to_rows(self, of_heads: Tensor) -> Tensor:
        """`(heads, count * length, dim)` -> `(K, R, dim)`, sequence by sequence."""
        split = of_heads.unflatten(1, (self.span.count, -1)).unflatten(0, (self.kv_heads, -1))
        return split.transpose(1, 2).reshape(self.kv_heads, -1, of_heads.shape[-1])

    def to_heads(self, of_rows: Tensor) -> Tensor:
        """The inverse of [`to_rows`]."""
        split = of_rows.unflatten(1, (self.span.count, -1, self.span.length))
        return split.transpose(1, 2).reshape(-1, self.span.count * self.span.length, of_rows.shape[-1])

    def _by_sequence(self, states: Tensor) -> Tensor:
        """`(K, count * length, dim)` -> `(K * count, length, dim)`."""
        return states.reshape(self.kv_heads * self.span.count, self.span.length, -1)

    def _per_sequence(self, of_rows: Tensor) -> Tensor:
        """`(K, R, n)` -> `(K * count, R / count, n)`."""
        return of_rows.reshape(self.kv_heads * self.span.count, -1, of_rows.shape[-1])

    def weights(self) -> Tensor:
        """Attention weights `(K, R, prefix + length)`."""
        query = self.query.to(self.wide) * self.scaling
        scores = query.new_empty(*query.shape[:2], self.prefix_length + self.span.length)
        if self.prefix_length:
            for head, keys in enumerate(self.prefix_key.to(self.wide)):
                scores[head, :, : self.prefix_length] = product(query[head], keys)
        own = torch.bmm(self._per_sequence(query), self.own_key.to(self.wide).transpose(1, 2))
        own.view(-1, self.span.length, self.span.length).add_(_hides_later(self.span.length, own))
        scores[:, :, self.prefix_length :] = own.view(self.kv_heads, -1, self.span.length)
        return scores.softmax(dim=-1)

    def read(self, weights: Tensor) -> Tensor:
        """The attention output of the queries, `(K, R, dim)`."""
        of_prefix, own = self._split(weights.to(self.dtype))
        output = torch.bmm(own, self.own_value).view(self.kv_heads, -1, self.own_value.shape[-1])
        if self.prefix_length:
            for head, values in enumerate(self.prefix_value):
                output[head] += product(of_prefix[head], values.t())
        return output

    def _split(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        of_prefix, own = weights.split([self.prefix_length, self.span.length], dim=-1)
        return of_prefix, self._per_sequence(own)

    def add_gradients(self, grad: Tensor, grad_query: Tensor, grad_key: Tensor, grad_value: Tensor) -> None:
        """Adds the gradients of the span's queries, keys and values to those of the row."""
        span = self.span
        grad = grad[:, span.queries]
        if span.filled is not None:
            grad = grad * span.filled[:, None].to(grad)
        grad = self.to_rows(grad)
        weights = self.weights()
        grad_scores = torch._softmax_backward_data(self._grad_weights(grad), weights, -1, self.wide)
        grad_scores = grad_scores.mul_(self.scaling).to(self.dtype)
        weights = weights.to(self.dtype)
        _add(grad_query, span.queries, self.to_heads(self._transposed_read(grad_scores)))
        self._add_weighted(grad_key, grad_scores, self.query)
        self._add_weighted(grad_value, weights, grad)

    def _grad_weights(self, grad: Tensor) -> Tensor:
        grads = grad.new_empty(*grad.shape[:2], self.prefix_length + self.span.length, dtype=self.wide)
        if self.prefix_length:
            for head, values in enumerate(self.prefix_value):
                grads[head, :, : self.prefix_length] = product(grad[head], values)
        own = torch.bmm(self._per_sequence(grad), self.own_value.transpose(1, 2))
        grads[:, :, self.prefix_length :] = own.view(self.kv_heads, -1, self.span.length)
        return grads

    def _transposed_read(self, grad_scores: Tensor) -> Tensor:
        of_prefix, own = self._split(grad_scores)
        output = torch.bmm(own, self.own_key).view(self.kv_heads, -1, self.own_key.shape[-1])
        if self.prefix_length:
            for head, keys in enumerate(self.prefix_key):
                output[head] += product(of_prefix[head], keys.t())
        return output

    def _add_weighted(self, total: Tensor, weights: Tensor, states: Tensor) -> None:
        """Adds the weighted states of the rows at the positions of the keys, of the prefix and of the sequences."""
        of_prefix, own = self._split(weights)
        own = torch.bmm(own.transpose(1, 2), self._per_sequence(states))
        _add(total, self.span.tokens, own.view(self.kv_heads, -1, states.shape[-1]))
        for head in range(self.kv_heads):
            total[head, self.span.prefix] += product(of_prefix[head].t(), states[head].t())


def _hides_later(length: int, like: Tensor) -> Tensor:
    return like.new_full((length, length), float("-inf")).triu_(1)


def _put(row: Tensor, span: Span, states: Tensor) -> None:
    if span.filled is None:
        row[:, span.queries] = states
    else:
        kept = span.filled.nonzero().squeeze(1)
        row[:, span.queries[kept]] = states[:, kept]


def _add(row: Tensor, positions: slice | Tensor, states: Tensor) -> None:
    if isinstance(positions, slice):
        row[:, positions] += states
    else:
        row.index_add_(1, positions, states)


def block_attention(
    query: Tensor, key: Tensor, value: Tensor, spans: Sequence[Span | LongSequence], scaling: float
) -> Tensor:
    """Attention over a row of tokens, of all of them or of those that something reads.

    Args:
        query (`Tensor` of shape `(heads, Q, dim)`): Queries; `heads` is a multiple of `kv_heads`.
        key (`Tensor` of shape `(kv_heads, T, dim)`), value (`Tensor` of shape `(kv_heads, T, width)`): Keys and
            values, with the dtype of the queries.
        spans (`Sequence[Span | LongSequence]`): Together they contain every query once; see [`group_spans`].
        scaling (`float`): Factor of the scores.

    Returns:
        `Tensor` of shape `(heads, Q, width)`
    """
    query, key, value = (states.to(_dtype_of_products(query)) for states in (query, key, value))
    with torch.autocast("cpu", enabled=False):
        return _BlockAttention.apply(query, key, value, spans, scaling)


def pays_off(query: Tensor, longest_context: int) -> bool:
    """Whether block attention is faster than fused attention for queries that attend to this many tokens."""
    bound = LONG_CONTEXT if _dtype_of_products(query).itemsize > 2 else LONG_CONTEXT // 2
    return query.device.type == "cpu" and longest_context >= bound


def _dtype_of_products(states: Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else states.dtype


def has_all_queries(completion_length: int) -> bool:
    """Whether a completion is computed together with others, and so for all its tokens."""
    return completion_length <= LONG_SEQUENCE


def group_spans(
    prompt: slice,
    lengths: Sequence[int],
    queried: Sequence[Sequence[int]],
    query_start: int,
    heads: int,
    device: torch.device,
) -> list[Span | LongSequence]:
    """Returns the spans of a prompt and its completions, which follow one another in the row.

    Args:
        prompt (`slice`): Positions of the prompt.
        lengths (`Sequence[int]`): Tokens of each completion.
        queried (`Sequence[Sequence[int]]`): Of the prompt and of each completion, the tokens that have queries: all
            of a completion for which [`has_all_queries`] holds.
        query_start (`int`): Position of the first query in the row of all queries.
        heads (`int`): Number of query heads.
    """
    prompt_length = prompt.stop - prompt.start
    starts = list(accumulate(lengths, initial=prompt.stop))[:-1]
    query_starts = list(accumulate(map(len, queried), initial=query_start))[:-1]
    nothing = slice(prompt.start, prompt.start)
    spans = [_long(nothing, prompt.start, prompt_length, query_starts[0], queried[0])]
    short = []
    for number, length in enumerate(lengths):
        if has_all_queries(length):
            short.append(number)
        else:
            spans.append(_long(prompt, starts[number], length, query_starts[number + 1], queried[number + 1]))
    short.sort(key=lambda number: -lengths[number])
    while short:
        together, short = _together(short, lengths, prompt_length, heads)
        positions = [(starts[i], query_starts[i + 1]) for i in together]
        spans.append(_joined(positions, [lengths[i] for i in together], prompt, device))
    return spans


def _long(prefix: slice, start: int, length: int, query_start: int, queried: Sequence[int]) -> LongSequence:
    queries = slice(query_start, query_start + len(queried))
    return LongSequence(prefix, slice(start, start + length), queries, queried)


def _together(order: list[int], lengths: Sequence[int], prompt_length: int, heads: int) -> tuple[list[int], list[int]]:
    """Takes sequences of similar length from the front, longest first, as many as can be computed at once."""
    longest = lengths[order[0]]
    most = max(1, MAX_WEIGHTS // (heads * longest * (prompt_length + longest)))
    count = sum(1 for number in order[:most] if 2 * lengths[number] > longest)
    return order[:count], order[count:]


def _joined(positions: list[tuple[int, int]], lengths: list[int], prompt: slice, device: torch.device) -> Span:
    """One span of sequences, each with its first key and its first query, padded to the length of the first."""
    longest, count = lengths[0], len(lengths)
    neighbours = all(after[0] - before[0] == longest for before, after in pairwise(positions))
    if neighbours and lengths[-1] == longest:
        tokens, queries = (slice(first, first + count * longest) for first in positions[0])
        return Span(prompt, tokens, queries, count, longest)
    within = torch.arange(longest) < torch.tensor(lengths)[:, None]
    tokens, queries = (
        (torch.tensor(starts)[:, None] + torch.arange(longest) * within).flatten().to(device)
        for starts in zip(*positions, strict=True)
    )
    return Span(prompt, tokens, queries, count, longest, within.flatten().to(device))
