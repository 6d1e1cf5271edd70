# SPDX-License-Identifier: Apache-2.0
"""The trainers, on transformers.Trainer."""

from .config import GRPOConfig, RLConfig
from .grpo import GRPOTrainer

__all__ = ["GRPOConfig", "GRPOTrainer", "RLConfig"]
