# SPDX-License-Identifier: Apache-2.0
"""Checks between reward functions and a trainer: the required columns, and finite sums."""

import torch
from torch import Tensor

from ...data import PromptDataset
from ...rewards import RewardError, RewardScorer
from ...rewards.columns import TRAINER_ARGUMENTS


def check_reward_columns(scorer: RewardScorer, *prompts: PromptDataset | dict[str, PromptDataset] | None) -> None:
    """Refuses prompts that lack a column needed by a reward function.

    Raises:
        RewardError: Naming the function and the column.
    """
    for some in prompts:
        for part in some.values() if isinstance(some, dict) else [some]:
            if part is not None:
                scorer.check_columns(part.columns, TRAINER_ARGUMENTS)


LARGEST_SQUARED = 1e18  # squared rewards, summed over a batch, must be finite in float32


def check_totals(rewards: Tensor, signals: Tensor, scorer: RewardScorer, squared: bool = False) -> None:
    """Refuses finite rewards whose weighted sum, or its square, is not finite.

    Args:
        rewards (`Tensor` of shape `(N,)`): The weighted sums.
        signals (`Tensor` of shape `(N, F)`): The rewards of each function; NaN if it does not apply.
        squared (`bool`): Whether the loss uses unscaled rewards, so that their squares must be finite too.

    Raises:
        RewardError: Naming the completion and its rewards.
    """
    sizes = signals.double().nan_to_num(0.0).abs() @ scorer.weights.to(signals.device).double().abs()
    wrong = sizes > (LARGEST_SQUARED if squared else torch.finfo(torch.float32).max)
    if wrong.any():
        sample = int(wrong.nonzero()[0])
        parts = dict(zip(scorer.names, signals[sample].tolist(), strict=True))
        which = f"whose square in the loss (limit {LARGEST_SQUARED:.0e})" if squared else "which"
        raise RewardError(
            f"The rewards of sample {sample} are {parts}; weighted by {scorer.weights.tolist()} their sum is "
            f"{rewards[sample].item()}, {which} float32 cannot hold. Return smaller rewards, or lower reward_weights."
        )
