# SPDX-License-Identifier: Apache-2.0
"""Staleness of the sampling weights, mismatch between engine and trainer log-probabilities, its correction, and what
the engine measured itself.

docs/metrics.md defines the metrics.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ...algorithms import correction_weights, sampling_mismatch
from ...rollout import Rollout, RolloutEngine
from ..metrics import Metrics
from ..settings.base import RLConfig
from .micro_batch import MicroBatch

_DIFFERENCE = "sampling/sampling_logp_difference"
_RATIO = "sampling/importance_sampling_ratio"
K3 = "sampling/k3"


def measure_staleness(rollouts: Sequence[Rollout], step: int, metrics: Metrics) -> None:
    """Logs how many updates the sampling weights were behind the trainer."""
    behind = [step - rollout.weights_version for rollout in rollouts]
    metrics.add_values("sampling/staleness", torch.tensor(behind))


def measure_engine(engine: RolloutEngine, metrics: Metrics) -> None:
    """Logs what an engine measured itself; see [`RolloutEngine.measured`]."""
    measured = getattr(engine, "measured", None)
    for name, (total, count) in (measured() if measured is not None else {}).items():
        metrics.add_mean(name if "/" in name else f"sampling/{name}", total, count)


def measure_mismatch(logps: Tensor, batch: MicroBatch, step: int, metrics: Metrics) -> None:
    """Logs the mismatch between engine and trainer, as long as the policy is still that of the rollout.

    Args:
        logps (`Tensor` of shape `(N, C)`): Log-probabilities under the current policy.
        batch ([`MicroBatch`]): The micro-batch.
        step (`int`): Optimizer steps done so far.
        metrics ([`Metrics`]): Collects the result.
    """
    if batch.token_weights is None and batch.sampled_at == step:  # otherwise it was measured with the correction
        _add_mismatch(logps.detach(), batch, metrics)


@torch.no_grad()
def correct_rollout(
    micro_batches: Sequence[MicroBatch],
    model: nn.Module,
    logps_of: Callable[[MicroBatch], Tensor],
    args: RLConfig,
    metrics: Metrics,
) -> None:
    """With `rollout_correction`, replaces the engine's log-probabilities by the trainer's and adds `token_weights`.

    Args:
        micro_batches (`Sequence[MicroBatch]`): Micro-batches of a new rollout; changed in place.
        model (`nn.Module`): The wrapped policy; it is put into evaluation mode meanwhile.
        logps_of (`Callable`): Computes the log-probabilities of a micro-batch under this model.
        args ([`RLConfig`]): Settings.
        metrics ([`Metrics`]): Collects differences and weights.
    """
    if args.rollout_correction == "none":
        return
    was_training = model.training
    model.eval()
    try:
        with metrics.phase("correction"):
            for batch in micro_batches:
                _correct(logps_of(batch), batch, args, metrics)
    finally:
        model.train(was_training)


def _correct(logps: Tensor, batch: MicroBatch, args: RLConfig, metrics: Metrics) -> None:
    mask, engine_logps = batch.loss_mask, batch.old_logps
    _add_mismatch(logps, batch, metrics)
    weights = correction_weights(logps, engine_logps, mask, args.rollout_correction, args.rollout_correction_cap)
    batch.token_weights, batch.old_logps = weights, logps
    metrics.add_values(f"{_RATIO}/mean", weights[mask.bool()])
    metrics.add_range(f"{_RATIO}/{{}}", weights[mask.bool()])


def _add_mismatch(logps: Tensor, batch: MicroBatch, metrics: Metrics) -> None:
    found = sampling_mismatch(logps, batch.old_logps, batch.loss_mask)
    num_tokens = found["num_tokens"]
    metrics.add_mean(f"{_DIFFERENCE}/mean", found["mean"] * num_tokens, num_tokens)
    # The bound is on the engine; of older weights (sync_every) the distance is how far the policy has moved.
    add_mean = metrics.add_mean if batch.behind else metrics.add_watched_mean
    add_mean(K3, found["k3"] * num_tokens, num_tokens)
    metrics.add_max(f"{_DIFFERENCE}/max", torch.where(num_tokens > 0, found["max"], -torch.inf))
