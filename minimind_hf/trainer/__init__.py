# SPDX-License-Identifier: Apache-2.0
"""The trainers, on transformers.Trainer.

`base.py` is the loop, `steps.py` the four steps that an algorithm fills in, `grpo.py` and `ppo.py` are the algorithms.
Floors from the ground, each importing only what is below: settings, distributed, metrics; models, experience;
checkpoints, logs; step_guard, steps; evaluating; base; grpo, ppo. This room may import every other of the package;
none of them imports it.
"""

from .base import RLTrainer
from .grpo import GRPOTrainer
from .ppo import PPOTrainer
from .settings.base import RLConfig
from .settings.grpo import GRPOConfig
from .settings.ppo import PPOConfig

__all__ = ["GRPOConfig", "GRPOTrainer", "PPOConfig", "PPOTrainer", "RLConfig", "RLTrainer"]
