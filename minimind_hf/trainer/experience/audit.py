# SPDX-License-Identifier: Apache-2.0
"""The audit of episodes: the trainer's log-probabilities of whole episodes against those of the engine.

Ids of turns and answers are joined without being rendered again, so one token too many or too few shifts everything
after it. The losses would hide that in a ratio; here it is an error that names the turn.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...rollout import EngineMismatchError, Rollout, shares_weights
from ..settings.base import RLConfig

# In nats. Computed twice in float32, log-probabilities differ by some 1e-6, in bfloat16 those of rare tokens by 0.1.
_EXACT, _REDUCED = 0.01, 1.0


def tolerance(args: RLConfig, engine: object) -> float:
    """Largest difference, in nats, between the engine's and the trainer's log-probability of a token."""
    is_reduced = args.bf16 or args.fp16 or args.rollout_dtype == "bfloat16"
    return _EXACT if shares_weights(engine) and not is_reduced else _REDUCED


def check_episodes(rollouts: Sequence[Rollout], logps: Sequence[Tensor], largest: float) -> float:
    """Compares log-probabilities at every token that the policy drew.

    Args:
        rollouts (`Sequence[Rollout]`): N episodes from the engine.
        logps (`Sequence[Tensor]`, N of shape `(C,)`): The same tokens under the trainer's weights.
        largest (`float`): Largest difference that is in order, in nats.

    Returns:
        `float`: The largest difference.

    Raises:
        EngineMismatchError: Naming the episode, the turn and the token at which the difference begins.
    """
    found = 0.0
    for row, (rollout, scored) in enumerate(zip(rollouts, logps, strict=True)):
        scored = scored.float().cpu()
        drawn = torch.tensor(rollout.loss_mask or [1] * len(rollout.completion_ids), dtype=torch.bool)
        differences = (scored[: len(drawn)] - torch.tensor(rollout.logprobs)).abs().masked_fill(~drawn, 0.0)
        found = max(found, differences.max().item())
        wrong = ~(differences <= largest)  # NaN is wrong too
        if not wrong.any():
            continue
        place = int(wrong.nonzero()[0])
        turn, (start, _) = next((n, turn) for n, turn in enumerate(rollout.turns) if turn[0] <= place < turn[1])
        raise EngineMismatchError(
            f"Episode {row}, turn {turn + 1}, its token {place - start} (id {rollout.completion_ids[place]}): "
            f"the engine's log-probability is {rollout.logprobs[place]:.4f}, the trainer's "
            f"{scored[place].item():.4f}, and they may differ by {largest:g}. From here on they do not see the same "
            "tokens, or not with the same weights. Check what the engine puts between turns, and that it samples from "
            "the trainer's weights."
        )
    return found
