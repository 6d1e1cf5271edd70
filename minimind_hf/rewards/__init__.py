# SPDX-License-Identifier: Apache-2.0
"""Reward signals: rules, reward models, and the scorer that calls any mixture of them."""

from .model import RewardModel, RewardModelError
from .resolve import RewardError
from .rules import (
    REWARD_FUNCTIONS,
    answer_part,
    completion_text,
    format_reward,
    format_score,
    length_reward,
    length_score,
    repetition_penalty,
    repetition_reward,
    repetition_reward_cjk,
    repetition_score,
    thinking_reward,
    thinking_score,
)
from .scorer import RewardScorer

__all__ = [
    "REWARD_FUNCTIONS",
    "RewardError",
    "RewardModel",
    "RewardModelError",
    "RewardScorer",
    "answer_part",
    "completion_text",
    "format_reward",
    "format_score",
    "length_reward",
    "length_score",
    "repetition_penalty",
    "repetition_reward",
    "repetition_reward_cjk",
    "repetition_score",
    "thinking_reward",
    "thinking_score",
]
