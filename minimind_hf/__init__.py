# SPDX-License-Identifier: Apache-2.0
"""Reinforcement learning for MiniMind and every other causal LM of the Hugging Face ecosystem.

Importing registers MiniMind with transformers' Auto classes. Everything else is imported when it is first used, torch
and transformers too.
"""

from typing import TYPE_CHECKING

from . import (
    environment,  # noqa: F401 - first of all: torch reads its variables with its first tensor, and its end is the last
    models,  # noqa: F401 - registers MiniMind
)
from .lazy import lazy

if TYPE_CHECKING:
    from .agent import AgentError, Conversation, Reply, calculate
    from .data import PromptDataset, load_prompts
    from .models import (
        MiniMindConfig,
        MiniMindForCausalLM,
        MiniMindForSequenceClassification,
        MiniMindForTokenClassification,
        MiniMindModel,
    )
    from .rewards import RewardModel, RewardScorer
    from .rollout import Rollout, RolloutEngine, SamplingParams, ServerGoneError, SGLangEngine, TorchEngine
    from .trainer import (
        DistillConfig,
        DistillTrainer,
        GRPOConfig,
        GRPOTrainer,
        PPOConfig,
        PPOTrainer,
        RLConfig,
        RLTrainer,
    )

__version__ = "0.2.0.dev0"

_LAZY = {
    "AgentError": ".agent",
    "Conversation": ".agent",
    "DistillConfig": ".trainer",
    "DistillTrainer": ".trainer",
    "GRPOConfig": ".trainer",
    "GRPOTrainer": ".trainer",
    "MiniMindConfig": ".models",
    "MiniMindForCausalLM": ".models",
    "MiniMindForSequenceClassification": ".models",
    "MiniMindForTokenClassification": ".models",
    "MiniMindModel": ".models",
    "PPOConfig": ".trainer",
    "PPOTrainer": ".trainer",
    "PromptDataset": ".data",
    "RLConfig": ".trainer",
    "RLTrainer": ".trainer",
    "RewardModel": ".rewards",
    "RewardScorer": ".rewards",
    "Reply": ".agent",
    "Rollout": ".rollout",
    "RolloutEngine": ".rollout",
    "SGLangEngine": ".rollout",
    "SamplingParams": ".rollout",
    "ServerGoneError": ".rollout",
    "TorchEngine": ".rollout",
    "calculate": ".agent",
    "load_prompts": ".data",
}

__all__ = [
    "AgentError",
    "Conversation",
    "DistillConfig",
    "DistillTrainer",
    "GRPOConfig",
    "GRPOTrainer",
    "MiniMindConfig",
    "MiniMindForCausalLM",
    "MiniMindForSequenceClassification",
    "MiniMindForTokenClassification",
    "MiniMindModel",
    "PPOConfig",
    "PPOTrainer",
    "PromptDataset",
    "RLConfig",
    "RLTrainer",
    "Reply",
    "RewardModel",
    "RewardScorer",
    "Rollout",
    "RolloutEngine",
    "SGLangEngine",
    "SamplingParams",
    "ServerGoneError",
    "TorchEngine",
    "calculate",
    "load_prompts",
]

__getattr__, __dir__ = lazy(__name__, _LAZY)
