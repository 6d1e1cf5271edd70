# SPDX-License-Identifier: Apache-2.0
"""Rollout engines: token ids in, token ids and log-probabilities out.

It imports `forward` and `models`, and knows no trainer. `engine` is the contract with trainers. How processes agree
and how weights are exported to servers is here too; whatever concerns one engine belongs in its own room, `torch` or
`sglang`. A new engine subclasses `RolloutEngine`.
"""

from .engine import Rollout, RolloutEngine, SamplingParams, check_engine, check_rollouts, shares_weights
from .errors import EngineMismatchError, RolloutServerError, ServerGoneError
from .exported_weights import exported_config, exported_weights, write_weights
from .sglang.engine import WEIGHT_SYNCS, SGLangEngine
from .torch.engine import TorchEngine

__all__ = [
    "WEIGHT_SYNCS",
    "EngineMismatchError",
    "Rollout",
    "RolloutEngine",
    "RolloutServerError",
    "SGLangEngine",
    "SamplingParams",
    "ServerGoneError",
    "TorchEngine",
    "check_engine",
    "check_rollouts",
    "exported_config",
    "exported_weights",
    "shares_weights",
    "write_weights",
]
