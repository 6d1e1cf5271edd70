# SPDX-License-Identifier: Apache-2.0
"""What the rows of completions and samples hold of an episode; `reports/episodes.py` lists and reads it."""

import math
from itertools import groupby
from typing import Any

from transformers import PreTrainedTokenizerBase

from ...rollout import Rollout
from ..experience.experience import Experience


def episode_columns(experience: Experience, index: int) -> dict[str, Any]:
    """What is counted of an episode, and its rewards by turn; nothing of other completions.

    Args:
        experience ([`Experience`]): A rollout with rewards.
        index (`int`): Of the completion.
    """
    columns = {} if experience.episodes is None else dict(experience.episodes[index].counts)
    if experience.turn_rewards is not None:
        columns["turn_rewards"] = [
            None if math.isnan(reward) else round(reward, 6) for reward in experience.turn_rewards[index]
        ]
    return columns


def written_and_read(rollout: Rollout, tokenizer: PreTrainedTokenizerBase) -> list[tuple[str, int]]:
    """The tokens of a completion as text: runs that the policy wrote (1), and runs that it read (0)."""
    mask = rollout.loss_mask or [1] * len(rollout.completion_ids)
    runs = groupby(zip(rollout.completion_ids, mask, strict=True), key=lambda pair: pair[1])
    return [(tokenizer.decode([token for token, _ in run]), wrote) for wrote, run in runs]
