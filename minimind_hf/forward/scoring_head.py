# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities from the language-model head, without holding all its logits at once.

Inside the context, the head maps hidden states to `(log-probability, entropy)` of given target tokens instead of
logits. It works chunk by chunk, and the logits of a chunk are recomputed in the backward pass; what fits into one
chunk is not. A chunk on a CPU is what its caches hold, on a device a share of the memory that is free. This happens in
the head's own forward, so everything that wraps the model (DDP, DeepSpeed, FSDP, peft) works as it does with logits.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .kept_tokens import KeptTokens

LOGITS_PER_CHUNK = 2**23  # 32 MiB in float32: of a CPU, and the fewest on a device
MOST_LOGITS = 2**29  # of a device: larger products are not faster
# As the head returns them, in float32, divided by the temperature, their probabilities, and the gradient in both
# dtypes
BYTES_PER_LOGIT = 20
SHARE_OF_FREE = 0.25  # the rest is for fragments, and for the gradients of the layers
ROWS_PER_TILE = 64  # with 6400 logits each, 1.6 MiB: several passes over a tile read the cache instead of memory


class _SelectedLogps(torch.autograd.Function):
    """`log_softmax(logits / temperature)[target]` and the entropy; keeps the probabilities for the backward pass.

    logits (`(R, V)`, float32 or wider), targets (`(R,)`) -> `(R,)`, `(R,)`; the entropy has a gradient on request.
    With sets, both are over the set of each row; probabilities outside are 0, and so are their gradients.
    """

    @staticmethod
    def forward(ctx, logits, targets, temperature, entropy_gradient, sets=None):
        probabilities = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        rows = ROWS_PER_TILE if logits.device.type == "cpu" else len(logits)
        kept = repeat(None) if probabilities is None else probabilities.split(rows)
        sets = repeat(None) if sets is None else sets.split(rows)
        tiles = zip(logits.split(rows), targets.split(rows), kept, sets, strict=False)
        results = [_tile_logps(*tile, temperature) for tile in tiles]
        logps, entropy = (torch.cat(parts) for parts in zip(*results, strict=True))
        if probabilities is not None:
            ctx.save_for_backward(probabilities, targets, entropy)
        ctx.temperature = temperature
        ctx.entropy_gradient = entropy_gradient
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return logps, entropy

    @staticmethod
    def backward(ctx, grad, grad_entropy):
        probabilities, targets, entropy = ctx.saved_tensors
        scaled = grad / ctx.temperature
        slope = None
        if ctx.entropy_gradient:
            # dH / dz = -p * (log p + H); a probability that has underflowed contributes nothing.
            logps = probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log_()
            slope = logps.add_(entropy[:, None]).mul_(probabilities)
        grad_logits = probabilities.mul_(-scaled[:, None])  # in place: they are not needed any more
        grad_logits.scatter_add_(1, targets[:, None], scaled[:, None])
        if slope is not None:
            grad_logits.sub_(slope.mul_((grad_entropy / ctx.temperature)[:, None]))
        return grad_logits, None, None, None, None


def _tile_logps(
    logits: Tensor, targets: Tensor, probabilities: Tensor | None, sets: KeptTokens | None, temperature: float
) -> tuple[Tensor, Tensor]:
    """Returns the log-probabilities and entropies of some rows, and writes their probabilities to `probabilities`."""
    logits = logits / temperature
    if sets is not None:  # a finite number: 0 times it is 0, and its probability is 0 all the same
        logits.masked_fill_(sets.cut(logits.shape[1], logits.device), torch.finfo(logits.dtype).min)
    probabilities = torch.softmax(logits, dim=-1, out=probabilities)
    # The log normalizer, from the most likely token: its probability is at least 1 / V, so no precision is lost.
    log_normalizer = logits.amax(dim=-1) - probabilities.amax(dim=-1).log_()
    logps = logits.gather(1, targets[:, None]).squeeze(1) - log_normalizer
    entropy = log_normalizer - torch.linalg.vecdot(probabilities, logits)
    return logps, entropy.clamp_(min=0.0)  # the difference of two large numbers where a token is all but certain


def _chunk_logps(
    project: Callable[[Tensor], Tensor],
    hidden: Tensor,
    targets: Tensor,
    sets: KeptTokens | None,
    temperature: float,
    entropy_gradient: bool,
) -> tuple[Tensor, Tensor]:
    logits = project(hidden)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    with torch.autocast(logits.device.type, enabled=False):  # it would compute sums over the vocabulary in bfloat16
        return _SelectedLogps.apply(logits, targets, temperature, entropy_gradient, sets)


def chunked_scores(
    project: Callable[[Tensor], Tensor],
    hidden: Tensor,
    targets: Tensor,
    temperature: float,
    vocab_size: int,
    entropy_gradient: bool = False,
    kept: KeptTokens | None = None,
) -> Tensor:
    """Computes log-probabilities and entropies of target tokens from hidden states.

    Args:
        project (`Callable`): The head, `(R, H)` -> `(R, V)`.
        hidden (`Tensor` of shape `(K, H)`): Hidden states of the positions that predict the targets.
        targets (`Tensor` of shape `(K,)`): Token ids.
        temperature (`float`): Divisor of the logits, in float32.
        vocab_size (`int`): V, the size of the vocabulary.
        entropy_gradient (`bool`): Whether the entropy has a gradient too.
        kept ([`KeptTokens`], *optional*): The sets that the K targets were drawn from, which both are over.

    Returns:
        `Tensor` of shape `(K, 2)`: log-probability, with a gradient, and entropy in nats.
    """
    rows = max(1, logits_per_chunk(hidden.device) // vocab_size)
    options = (temperature, entropy_gradient)
    hidden_chunks = hidden.split(rows)
    sets = [None] * len(hidden_chunks) if kept is None else kept.split(rows)
    chunks = list(zip(hidden_chunks, targets.split(rows), sets, strict=True))
    if len(chunks) == 1 or not torch.is_grad_enabled():
        results = [_chunk_logps(project, *chunk, *options) for chunk in chunks]
    else:
        results = [
            checkpoint(_chunk_logps, project, *chunk, *options, use_reentrant=False, preserve_rng_state=False)
            for chunk in chunks
        ]
    return torch.cat([torch.stack([logps, entropy.to(logps)], dim=1) for logps, entropy in results])


def logits_per_chunk(device: torch.device) -> int:
    """How many logits to hold at a time; on a device a power of two, so that it seldom differs from step to step."""
    free = free_bytes(device)
    if free is None:
        return LOGITS_PER_CHUNK
    fitting = int(free * SHARE_OF_FREE) // BYTES_PER_LOGIT
    return min(max(1 << max(fitting, 1).bit_length() - 1, LOGITS_PER_CHUNK), MOST_LOGITS)


def free_bytes(device: torch.device) -> int | None:
    """The memory that tensors can still take: what nobody has, and what torch has but does not use. Known of CUDA
    devices alone."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


@contextmanager
def scoring_head(
    head: nn.Module,
    targets: Tensor,
    temperature: float,
    vocab_size: int,
    entropy_gradient: bool = False,
    kept: KeptTokens | None = None,
) -> Iterator[None]:
    """Makes `head` map hidden states `(1, K, H)` to log-probabilities and entropies `(1, K, 2)` of `targets`."""

    def score(project: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
        return chunked_scores(project, hidden[0], targets, temperature, vocab_size, entropy_gradient, kept)[None]

    with replaced_head(head, score):
        yield


@contextmanager
def replaced_head(head: nn.Module, compute: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]) -> Iterator[None]:
    """Makes `head` return `compute(project, hidden)`, where `project` is what it computes otherwise."""
    project = head.forward

    def forward(hidden: Tensor) -> Tensor:
        return compute(project, hidden)

    had_own = "forward" in vars(head)
    head.forward = forward
    try:
        yield
    finally:
        if had_own:
            head.forward = project
        else:
            del head.forward
