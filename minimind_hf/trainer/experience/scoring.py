# SPDX-License-Identifier: Apache-2.0
"""Checks between reward functions and a trainer: the columns that they need, and sums that are finite."""

import torch
from torch import Tensor

from ...data import PromptDataset
from ...rewards import RewardError, RewardScorer
from ...rewards.columns import TRAINER_ARGUMENTS


def check_reward_columns(scorer: RewardScorer, *prompts: PromptDataset | dict[str, PromptDataset] | None) -> None:
    """Refuses prompts that lack a column which a reward function needs.

    Raises:
        RewardError: Naming function and column.
    """
    for some in prompts:
        for part in some.values() if isinstance(some, dict) else [some]:
            if part is not None:
                scorer.check_columns(part.columns, TRAINER_ARGUMENTS)


LARGEST_SQUARED = 1e18  # the square of a reward, summed over a batch, is to be finite in float32


def check_totals(rewards: Tensor, signals: Tensor, scorer: RewardScorer, squared: bool = False) -> None:
    """Refuses sums of finite rewards that are not finite themselves, or whose squares are not.

    Args:
        rewards (`Tensor` of shape `(N,)`): The weighted sums.
        signals (`Tensor` of shape `(N, F)`): What was summed; NaN is no signal.
        squared (`bool`): Whether the loss takes rewards as they are, so that its squares grow with them.

    Raises:
        RewardError: Naming the sample and its rewards.
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
