# SPDX-License-Identifier: Apache-2.0
"""The divergence of a student from its teacher over the whole vocabulary, without holding all logits of either.

The teacher is known by its last hidden states, a few hundred numbers a token where its logits are thousands. Inside
the student's head both are projected, chunk by chunk, and compared; in the backward pass a chunk is computed again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..algorithms import generalized_jsd_and_slope
from . import scoring_head
from .head_rows import Project, read_head
from .introspection import vocabulary_size
from .kept_tokens import KeptTokens
from .on_device import on_device
from .token_batch import TokenBatch

ROWS_PER_TILE = 16  # as in the scoring head; here seven matrices of a tile share the cache


@dataclass(frozen=True)
class TeacherRows:
    """What a teacher says at the K scored tokens of a batch, in order.

    Args:
        hidden (`Tensor` of shape `(K, H)`): Its last hidden states, or its logits.
        project (`Callable`, *optional*): From these to logits `(R, V)`. Unset: the student's own head, which a teacher
            on the same base has too.
    """

    hidden: Tensor
    project: Project | None = None


@dataclass(frozen=True)
class Comparison:
    """How student and teacher are compared.

    Args:
        beta (`float`): From forward KL (0) to reverse KL (1); see [`generalized_jsd`].
        temperature (`float`): The temperature at which completions were sampled, and log-probabilities are scored.
        loss_temperature (`float`): Divisor of the logits of both in the divergence.
    """

    beta: float
    temperature: float
    loss_temperature: float


@dataclass
class DivergenceScores:
    """The results of one forward pass of the student for the tokens of N completions; 0 where none is scored.

    Args:
        divergence (`Tensor` of shape `(N, C)`): Of student and teacher at each token, in nats, with a gradient.
        logps (`Tensor` of shape `(N, C)`): Log-probability of each token under the student at the sampling
            temperature, over the set that it was drawn from.
        entropy (`Tensor` of shape `(N, C)`): Entropy of the student at that temperature, over the whole vocabulary.
        aux_loss (`Tensor` of shape `()`, *optional*): The router's auxiliary loss, before its coefficient.
    """

    divergence: Tensor
    logps: Tensor
    entropy: Tensor
    aux_loss: Tensor | None = None


def divergence_scores(
    model: nn.Module,
    batch: TokenBatch,
    teacher: TeacherRows,
    comparison: Comparison,
    layout: str,
    reads_head: bool = True,
    with_aux_loss: bool = False,
) -> DivergenceScores:
    """Runs the student and compares it with its teacher at every scored token.

    Args:
        model: The student, a causal LM.
        batch ([`TokenBatch`]): N completions of at most C tokens.
        teacher ([`TeacherRows`]): Of the K scored tokens of the batch.
        comparison ([`Comparison`]): How they are compared.
        layout (`str`): As for [`score_completions`].
        reads_head (`bool`): Whether the head is the last that the model computes; see [`read_head`].
        with_aux_loss (`bool`): Whether to compute the router's auxiliary loss.

    Returns:
        [`DivergenceScores`]
    """
    device = batch.device
    places = [batch.scored_places(row) for row in range(len(batch))]
    ids = [batch.completion_ids[row][place] for row, of_row in enumerate(places) for place in of_row]
    targets, sets = on_device(ids, device), batch.scored_sets()
    vocab_size = vocabulary_size(model)

    def read(project: Project, hidden: Tensor, rows: slice) -> Tensor:
        compared = TeacherRows(teacher.hidden[rows], teacher.project)
        own_sets = None if sets is None else sets.take(rows)
        return chunked_divergences(project, hidden, targets[rows], compared, comparison, vocab_size, own_sets)

    results, aux_loss = read_head(model, batch, layout, read, reads_head, with_aux_loss)
    slots = [row * batch.width + place for row, of_row in enumerate(places) for place in of_row]
    at = on_device(slots, device)
    whole = results.new_zeros(3, len(batch) * batch.width).index_copy(1, at, results.t())
    divergence, logps, entropy = whole.view(3, len(batch), batch.width).unbind()
    return DivergenceScores(divergence, logps.detach(), entropy.detach(), aux_loss)


def chunked_divergences(
    project: Project,
    hidden: Tensor,
    targets: Tensor,
    teacher: TeacherRows,
    comparison: Comparison,
    vocab_size: int,
    kept: KeptTokens | None = None,
) -> Tensor:
    """Compares student and teacher from their hidden states.

    Args:
        project (`Callable`): The student's head, `(R, H)` -> `(R, V)`.
        hidden (`Tensor` of shape `(K, H)`): The student's hidden states that predict the targets.
        targets (`Tensor` of shape `(K,)`): Token ids.
        teacher ([`TeacherRows`]): Of the same K tokens.
        comparison ([`Comparison`]): How they are compared.
        vocab_size (`int`): V, the size of the vocabulary.
        kept ([`KeptTokens`], *optional*): The sets that the targets were drawn from.

    Returns:
        `Tensor` of shape `(K, 3)`: divergence, with a gradient; log-probability and entropy, without.
    """
    rows = max(1, scoring_head.logits_per_chunk(hidden.device) // vocab_size)
    of_teacher = project if teacher.project is None else teacher.project
    sets = repeat(None) if kept is None else kept.split(rows)
    chunks = list(zip(hidden.split(rows), teacher.hidden.split(rows), targets.split(rows), sets, strict=False))
    compute = _recomputed if len(chunks) > 1 and torch.is_grad_enabled() else _chunk
    return torch.cat([compute(project, of_teacher, comparison, *chunk) for chunk in chunks])


def _recomputed(*arguments) -> Tensor:
    return checkpoint(_chunk, *arguments, use_reentrant=False, preserve_rng_state=False)


def _chunk(
    project: Project,
    teacher_project: Project,
    comparison: Comparison,
    hidden: Tensor,
    teacher_hidden: Tensor,
    targets: Tensor,
    sets: KeptTokens | None,
) -> Tensor:
    logits = _wide(project(hidden))
    with torch.no_grad():
        teacher_logits = _wide(teacher_project(teacher_hidden)).to(logits.dtype)
    with torch.autocast(logits.device.type, enabled=False):  # it would compute sums over the vocabulary in bfloat16
        return torch.stack(_Divergences.apply(logits, teacher_logits, targets, sets, comparison), dim=1)


def _wide(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


class _Divergences(torch.autograd.Function):
    """Divergence, log-probability of the targets and entropy of some rows; keeps the slope for the backward pass.

    logits, teacher_logits (`(R, V)`, float32 or wider), targets (`(R,)`) -> three of `(R,)`; the first has a gradient.
    """

    @staticmethod
    def forward(ctx, logits, teacher_logits, targets, sets, comparison):
        slope = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        results = [_tile(*tile, comparison) for tile in _tiles(logits, teacher_logits, targets, sets, slope)]
        divergence, logps, entropy = (torch.cat(parts) for parts in zip(*results, strict=True))
        if slope is not None:
            ctx.save_for_backward(slope)
        ctx.mark_non_differentiable(logps, entropy)
        return divergence, logps, entropy

    @staticmethod
    def backward(ctx, grad, *_):
        (slope,) = ctx.saved_tensors
        return slope.mul_(grad[:, None]), None, None, None, None  # in place: it is not needed any more


def _tiles(
    logits: Tensor, teacher_logits: Tensor, targets: Tensor, sets: KeptTokens | None, slope: Tensor | None
) -> Iterator[tuple]:
    rows = ROWS_PER_TILE if logits.device.type == "cpu" else max(1, len(logits))
    slopes = repeat(None) if slope is None else slope.split(rows)
    sets = repeat(None) if sets is None else sets.split(rows)
    return zip(logits.split(rows), teacher_logits.split(rows), targets.split(rows), sets, slopes, strict=False)


def _tile(
    logits: Tensor,
    teacher_logits: Tensor,
    targets: Tensor,
    sets: KeptTokens | None,
    slope: Tensor | None,
    comparison: Comparison,
) -> tuple[Tensor, Tensor, Tensor]:
    softness = comparison.loss_temperature
    student_logps = torch.log_softmax(logits / softness, dim=-1)
    divergence, found = generalized_jsd_and_slope(
        student_logps, torch.log_softmax(teacher_logits / softness, dim=-1), comparison.beta
    )
    if slope is not None:
        torch.div(found, softness, out=slope)
    if comparison.temperature != softness:
        student_logps = torch.log_softmax(logits / comparison.temperature, dim=-1)
    return divergence, *_logps_and_entropy(student_logps, targets, sets)


def _logps_and_entropy(logps: Tensor, targets: Tensor, sets: KeptTokens | None) -> tuple[Tensor, Tensor]:
    entropy = -torch.linalg.vecdot(logps.exp(), logps)
    of_targets = logps.gather(1, targets[:, None]).squeeze(1)
    if sets is not None:
        cut = sets.cut(logps.shape[1], logps.device)
        of_targets = of_targets - logps.masked_fill(cut, -torch.inf).logsumexp(dim=-1)
    return of_targets, entropy
