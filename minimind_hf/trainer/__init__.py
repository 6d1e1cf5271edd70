# SPDX-License-Identifier: Apache-2.0
"""The trainers, on transformers.Trainer.

`base.py` is the loop, `steps.py` holds the four steps that an algorithm fills in, `grpo.py`, `ppo.py` and
`distill.py` are the algorithms. From the bottom layer up, each importing only from layers below: settings,
distributed, metrics; models, experience; checkpoints, logs; step_guard, steps; evaluating; base; the algorithms.
CONTRIBUTING.md lists what each package may import.
"""

from .base import RLTrainer
from .distill import DistillTrainer
from .grpo import GRPOTrainer
from .ppo import PPOTrainer
from .settings.base import RLConfig
from .settings.distill import DistillConfig
from .settings.grpo import GRPOConfig
from .settings.ppo import PPOConfig

__all__ = [
    "DistillConfig",
    "DistillTrainer",
    "GRPOConfig",
    "GRPOTrainer",
    "PPOConfig",
    "PPOTrainer",
    "RLConfig",
    "RLTrainer",
]
