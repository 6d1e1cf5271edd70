# SPDX-License-Identifier: Apache-2.0
"""Between reward functions and a trainer: the required columns, the sums of rewards, and their sizes."""

import math

import torch
from torch import Tensor

from ...algorithms import total_rewards
from ...data import PromptDataset
from ...rewards import RewardError, RewardScorer
from ...rewards.columns import TRAINER_ARGUMENTS
from ...rewards.signals import Signals
from .experience import Experience


def check_reward_columns(scorer: RewardScorer, *prompts: PromptDataset | dict[str, PromptDataset] | None) -> None:
    """Refuses prompts that lack a column needed by a reward function.

    Raises:
        RewardError: Naming the function and the column.
    """
    for some in prompts:
        for part in some.values() if isinstance(some, dict) else [some]:
            if part is not None:
                scorer.check_columns(part.columns, TRAINER_ARGUMENTS)


def total_by_turn(
    experience: Experience, signals: Signals, scorer: RewardScorer
) -> tuple[Tensor, list[list[float]] | None]:
    """Adds up the rewards of completions, by their weights.

    Args:
        experience ([`Experience`]): N completions, prompt-major, without stand-ins.
        signals ([`Signals`]): What the functions said of them.
        scorer ([`RewardScorer`]): The functions.

    Returns:
        `(rewards, turn_rewards)`: The sums, `(N,)`, NaN for completions that [`total_rewards`] leaves out; and if
        there are rewards of turns, their sums by turn, where the reward of a whole completion counts for its last
        turn, NaN if it is left out.
    """
    rewards = total_rewards(signals.values, scorer.weights, experience.num_generations)
    if not signals.by_turn:
        return rewards, None
    totals = signals.turn_totals(scorer.weights.tolist(), experience.num_turns)
    left_out = rewards.isnan().tolist()
    return rewards, [[math.nan] * len(row) if out else row for row, out in zip(totals, left_out, strict=True)]


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
