# SPDX-License-Identifier: Apache-2.0
"""Completions seen from the trainer: how old their weights were, how far off their log-probabilities, and what
corrects that. docs/metrics.md defines what is logged."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..algorithms import correction_weights, sampling_mismatch
from ..rollout import Rollout
from .experience import MicroBatch
from .metrics import Metrics

_DIFFERENCE = "sampling/sampling_logp_difference"
_RATIO = "sampling/importance_sampling_ratio"


def measure_staleness(rollouts: Sequence[Rollout], step: int, metrics: Metrics) -> None:
    """Logs how many updates behind the trainer the weights were that sampled."""
    behind = [step - rollout.weights_version for rollout in rollouts]
    metrics.add_values("sampling/staleness", torch.tensor(behind))


def measure_mismatch(logps: Tensor, batch: MicroBatch, step: int, metrics: Metrics) -> None:
    """Logs how far the engine was from the trainer, where the policy is still the one of the rollout.

    Args:
        logps (`Tensor` of shape `(B, C)`): By the policy as it is.
        batch (`dict[str, Tensor]`): The micro-batch.
        step (`int`): Optimizer steps done.
        metrics ([`Metrics`]): Where it is logged.
    """
    if "token_weights" in batch:
        return  # was measured when it was corrected
    is_fresh = batch["sampled_at"] == step
    _add_mismatch(logps.detach(), batch["old_logps"], batch["loss_mask"] * is_fresh[:, None], metrics)


def correct(logps: Tensor, batch: MicroBatch, how: str, cap: float, metrics: Metrics) -> None:
    """Puts the trainer's own log-probabilities in the place of the engine's, and adds `token_weights`.

    Args:
        logps (`Tensor` of shape `(B, C)`): By the policy, before any update on this rollout.
        batch (`dict[str, Tensor]`): The micro-batch; changed in place.
        how (`str`), cap (`float`): See [`correction_weights`].
        metrics ([`Metrics`]): Where difference and weights are logged.
    """
    mask = batch["loss_mask"]
    _add_mismatch(logps, batch["old_logps"], mask, metrics)
    batch["token_weights"] = correction_weights(logps, batch["old_logps"], mask, how, cap)
    batch["old_logps"] = logps
    weights = batch["token_weights"][mask.bool()]
    metrics.add_values(f"{_RATIO}/mean", weights)
    metrics.add_range(f"{_RATIO}/{{}}", weights)


def _add_mismatch(logps: Tensor, engine_logps: Tensor, mask: Tensor, metrics: Metrics) -> None:
    found = sampling_mismatch(logps, engine_logps, mask)
    num_tokens = found["num_tokens"]
    metrics.add_mean(f"{_DIFFERENCE}/mean", found["mean"] * num_tokens, num_tokens)
    metrics.add_mean("sampling/k3", found["k3"] * num_tokens, num_tokens)
    metrics.add_max(f"{_DIFFERENCE}/max", torch.where(num_tokens > 0, found["max"], -torch.inf))
