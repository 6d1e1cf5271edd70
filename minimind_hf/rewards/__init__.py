# SPDX-License-Identifier: Apache-2.0
"""From completions to rewards: rules, verifiable rewards, reward models, and the scorer that calls any mix of them.

It imports `tasks`, `paths`, `environment`, `event_loop`, `forward.introspection` and libraries, and knows no trainer.
A new built-in reward is a function in `rules` or `verifiable` and a row in their tables; what a user may pass as a
reward belongs in `resolve`, which columns a reward needs in `columns`, how functions are called and their answers
checked in `scorer`.
"""

from .builtin import BUILT_IN_REWARDS
from .errors import RewardError
from .model import RewardModel, RewardModelError
from .reasoning_gym import reasoning_gym_reward
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
from .verifiable import (
    exact_match_reward,
    exact_match_score,
    json_schema_reward,
    json_schema_score,
    math_reward,
    math_score,
    regex_reward,
    regex_score,
)

__all__ = [
    "BUILT_IN_REWARDS",
    "REWARD_FUNCTIONS",
    "RewardError",
    "RewardModel",
    "RewardModelError",
    "RewardScorer",
    "answer_part",
    "completion_text",
    "exact_match_reward",
    "exact_match_score",
    "format_reward",
    "format_score",
    "json_schema_reward",
    "json_schema_score",
    "length_reward",
    "length_score",
    "math_reward",
    "math_score",
    "reasoning_gym_reward",
    "regex_reward",
    "regex_score",
    "repetition_penalty",
    "repetition_reward",
    "repetition_reward_cjk",
    "repetition_score",
    "thinking_reward",
    "thinking_score",
]
