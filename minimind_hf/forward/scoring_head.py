# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities out of the language-model head, without ever holding all its logits.

Inside the context the head answers hidden states with `(log-probability, entropy)` of given target tokens instead of
logits, a chunk at a time; a chunk's logits are computed again in the backward pass. Since it happens in the head's
own forward, everything that wraps the model (DDP, DeepSpeed, FSDP, peft) works as it does for logits.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

LOGITS_PER_CHUNK = 2**22  # 16 MiB in float32


class _SelectedLogps(torch.autograd.Function):
    """`log_softmax(logits / temperature)[target]` and the entropy, keeping one copy of the logits for the backward.

    logits (`(R, V)`, float32 or wider; consumed), targets (`(R,)`) -> `(R,)`, `(R,)`, the latter with a gradient if
    asked for.
    """

    @staticmethod
    def forward(ctx, logits, targets, temperature, entropy_gradient):
        logits = logits.div_(temperature) if not logits.requires_grad else logits / temperature
        log_normalizer = logits.logsumexp(dim=-1)
        logps = logits.gather(1, targets[:, None]).squeeze(1) - log_normalizer
        probabilities = (logits - log_normalizer[:, None]).exp_()
        entropy = log_normalizer - torch.linalg.vecdot(probabilities, logits)
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
        grad_logits = probabilities * -scaled[:, None]
        grad_logits.scatter_add_(1, targets[:, None], scaled[:, None])
        if ctx.entropy_gradient:
            # dH / dz = -p * (log p + H); a probability that has underflowed takes no part.
            logps = probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log_()
            slope = logps.add_(entropy[:, None]).mul_(probabilities)
            grad_logits.sub_(slope.mul_((grad_entropy / ctx.temperature)[:, None]))
        return grad_logits, None, None, None


def _score_chunk(
    project: Callable[[Tensor], Tensor], hidden: Tensor, targets: Tensor, temperature: float, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    logits = project(hidden)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return _SelectedLogps.apply(logits, targets, temperature, entropy_gradient)


def chunked_scores(
    project: Callable[[Tensor], Tensor],
    hidden: Tensor,
    targets: Tensor,
    temperature: float,
    vocab_size: int,
    entropy_gradient: bool = False,
) -> Tensor:
    """Scores target tokens from hidden states.

    Args:
        project (`Callable`): The head, `(R, H)` -> `(R, V)`.
        hidden (`Tensor` of shape `(K, H)`): Hidden states of the positions that predict the targets.
        targets (`Tensor` of shape `(K,)`): Token ids.
        temperature (`float`): Divides the logits, in float32.
        vocab_size (`int`): V.
        entropy_gradient (`bool`): Whether the entropy has a gradient too.

    Returns:
        `Tensor` of shape `(K, 2)`: log-probability, with gradient, and entropy in nats.
    """
    rows = max(1, LOGITS_PER_CHUNK // vocab_size)
    options = (temperature, entropy_gradient)
    chunks = list(zip(hidden.split(rows), targets.split(rows), strict=True))
    if len(chunks) == 1 or not torch.is_grad_enabled():
        scored = [_score_chunk(project, *chunk, *options) for chunk in chunks]
    else:
        scored = [
            checkpoint(_score_chunk, project, *chunk, *options, use_reentrant=False, preserve_rng_state=False)
            for chunk in chunks
        ]
    return torch.cat([torch.stack([logps, entropy.to(logps)], dim=1) for logps, entropy in scored])


@contextmanager
def scoring_head(
    head: nn.Module, targets: Tensor, temperature: float, vocab_size: int, entropy_gradient: bool = False
) -> Iterator[None]:
    """Lets `head` answer hidden states `(1, K, H)` with the scores `(1, K, 2)` of `targets`."""
    project = head.forward

    def forward(hidden: Tensor) -> Tensor:
        return chunked_scores(project, hidden[0], targets, temperature, vocab_size, entropy_gradient)[None]

    had_own = "forward" in vars(head)
    head.forward = forward
    try:
        yield
    finally:
        if had_own:
            head.forward = project
        else:
            del head.forward
