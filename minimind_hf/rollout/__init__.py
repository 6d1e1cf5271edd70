# SPDX-License-Identifier: Apache-2.0
"""Rollout engines: token ids in, token ids and log-probabilities out.

It imports `forward` and `models`, and no trainer. `engine` is the contract with trainers; `samples` and `session` are
what passes between them. How processes agree and how weights are exported to servers is here too; whatever concerns
one engine belongs in its own room, `torch` or `sglang`. A new engine subclasses `RolloutEngine`.
"""

from .checks import check_engine, check_episodes, check_rollouts
from .engine import RolloutEngine, shares_weights
from .errors import EngineMismatchError, RolloutServerError, ServerGoneError
from .exported_weights import exported_config, exported_weights, write_weights
from .refill import Refill, takes_refill
from .rounds import play_in_rounds
from .samples import Rollout, SamplingParams
from .session import Session
from .sglang.engine import WEIGHT_SYNCS, SGLangEngine
from .torch.engine import TorchEngine

__all__ = [
    "WEIGHT_SYNCS",
    "EngineMismatchError",
    "Refill",
    "Rollout",
    "RolloutEngine",
    "RolloutServerError",
    "SGLangEngine",
    "SamplingParams",
    "Session",
    "ServerGoneError",
    "TorchEngine",
    "check_engine",
    "check_episodes",
    "check_rollouts",
    "exported_config",
    "exported_weights",
    "play_in_rounds",
    "shares_weights",
    "takes_refill",
    "write_weights",
]
