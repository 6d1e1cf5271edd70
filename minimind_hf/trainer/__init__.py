# SPDX-License-Identifier: Apache-2.0
"""The trainers, on transformers.Trainer."""

from .grpo import GRPOTrainer
from .ppo import PPOTrainer
from .settings.base import RLConfig
from .settings.grpo import GRPOConfig
from .settings.ppo import PPOConfig

__all__ = ["GRPOConfig", "GRPOTrainer", "PPOConfig", "PPOTrainer", "RLConfig"]
