# SPDX-License-Identifier: Apache-2.0
"""The trainers, on transformers.Trainer."""

from .config import GRPOConfig, PPOConfig, RLConfig
from .grpo import GRPOTrainer
from .ppo import PPOTrainer

__all__ = ["GRPOConfig", "GRPOTrainer", "PPOConfig", "PPOTrainer", "RLConfig"]
