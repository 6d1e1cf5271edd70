# SPDX-License-Identifier: Apache-2.0
"""Rollout engines: token ids in, token ids and log-probabilities out."""

from .engine import Rollout, RolloutEngine, SamplingParams, check_rollouts
from .torch_engine import TorchEngine

__all__ = ["Rollout", "RolloutEngine", "SamplingParams", "TorchEngine", "check_rollouts"]
