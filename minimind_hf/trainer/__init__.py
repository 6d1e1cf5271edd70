# SPDX-License-Identifier: Apache-2.0
"""The trainers, on transformers.Trainer."""

from .config import PPOConfig, RLConfig
from .grpo import GRPOTrainer
from .grpo_config import GRPOConfig
from .ppo import PPOTrainer

__all__ = ["GRPOConfig", "GRPOTrainer", "PPOConfig", "PPOTrainer", "RLConfig"]
