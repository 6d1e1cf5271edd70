# SPDX-License-Identifier: Apache-2.0
"""Completions seen from the trainer: how old their weights were, how far off their log-probabilities, and what
corrects that. docs/metrics.md defines what is logged."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ...algorithms import correction_weights, sampling_mismatch
from ...rollout import Rollout
from ..metrics import Metrics
from ..settings.base import RLConfig
from .micro_batch import MicroBatch

_DIFFERENCE = "sampling/sampling_logp_difference"
_RATIO = "sampling/importance_sampling_ratio"
K3 = "sampling/k3"


def measure_staleness(rollouts: Sequence[Rollout], step: int, metrics: Metrics) -> None:
    """Logs how many updates behind the trainer the weights were that sampled."""
    behind = [step - rollout.weights_version for rollout in rollouts]
    metrics.add_values("sampling/staleness", torch.tensor(behind))


def measure_mismatch(logps: Tensor, batch: MicroBatch, step: int, metrics: Metrics) -> None:
    """Logs how far the engine was from the trainer, where the policy is still the one of the rollout.

    Args:
        logps (`Tensor` of shape `(B, C)`): By the policy as it is.
        batch ([`MicroBatch`]): The micro-batch.
        step (`int`): Optimizer steps done.
        metrics ([`Metrics`]): Where it is logged.
    """
    if batch.token_weights is None and batch.sampled_at == step:  # else it was measured when it was corrected
        _add_mismatch(logps.detach(), batch.old_logps, batch.loss_mask, metrics)


@torch.no_grad()
def correct_rollout(
    micro_batches: Sequence[MicroBatch],
    model: nn.Module,
    score: Callable[[MicroBatch], Tensor],
    args: RLConfig,
    metrics: Metrics,
) -> None:
    """Puts the trainer's own log-probabilities in the place of the engine's, and adds `token_weights`, if
    `rollout_correction` asks for it.

    Args:
        micro_batches (`Sequence[MicroBatch]`): Of a new rollout; changed in place.
        model (`nn.Module`): The policy as it is trained; scores without dropout.
        score (`Callable`): From a micro-batch to its log-probabilities by this model.
        args ([`RLConfig`]): Settings.
        metrics ([`Metrics`]): Where differences and weights are logged.
    """
    if args.rollout_correction == "none":
        return
    was_training = model.training
    model.eval()
    try:
        with metrics.phase("correction"):
            for batch in micro_batches:
                _correct(score(batch), batch, args, metrics)
    finally:
        model.train(was_training)


def _correct(logps: Tensor, batch: MicroBatch, args: RLConfig, metrics: Metrics) -> None:
    mask, engine_logps = batch.loss_mask, batch.old_logps
    _add_mismatch(logps, engine_logps, mask, metrics)
    weights = correction_weights(logps, engine_logps, mask, args.rollout_correction, args.rollout_correction_cap)
    batch.token_weights, batch.old_logps = weights, logps
    metrics.add_values(f"{_RATIO}/mean", weights[mask.bool()])
    metrics.add_range(f"{_RATIO}/{{}}", weights[mask.bool()])


def _add_mismatch(logps: Tensor, engine_logps: Tensor, mask: Tensor, metrics: Metrics) -> None:
    found = sampling_mismatch(logps, engine_logps, mask)
    num_tokens = found["num_tokens"]
    metrics.add_mean(f"{_DIFFERENCE}/mean", found["mean"] * num_tokens, num_tokens)
    metrics.add_watched_mean(K3, found["k3"] * num_tokens, num_tokens)
    metrics.add_max(f"{_DIFFERENCE}/max", torch.where(num_tokens > 0, found["max"], -torch.inf))
