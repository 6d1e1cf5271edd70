# SPDX-License-Identifier: Apache-2.0
"""What goes into a rollout engine and what comes out: how completions are drawn, and completions."""

import math
from dataclasses import dataclass
from itertools import groupby

FINISH_REASONS = ("stop", "length")


@dataclass(frozen=True)
class SamplingParams:
    """How completions are drawn.

    Args:
        max_completion_length (`int`): Number of tokens after which a completion is cut.
        temperature (`float`): Divides the logits; above 0.
        eos_token_ids (`tuple[int, ...]`): Any of these ends a completion and is its last token.
        seed (`int`): Equal seeds, prompts and weights give equal completions, if the engine can guarantee it.
        greedy (`bool`): Take the most likely token. Log-probabilities are still those of the sampling distribution.
        max_turn_length (`int`, *optional*): Number of tokens after which one turn of an episode is cut. Unset: only
            `max_completion_length`, which counts all turns and what is between them, ends a turn.
    """

    max_completion_length: int
    temperature: float
    eos_token_ids: tuple[int, ...]
    seed: int = 0
    greedy: bool = False
    max_turn_length: int | None = None

    def __post_init__(self):
        if self.max_completion_length < 1:
            raise ValueError(f"max_completion_length must be at least 1, got {self.max_completion_length}.")
        if not self.temperature > 0 or math.isinf(self.temperature):
            raise ValueError(
                f"temperature must be a finite number above 0, got {self.temperature}. Log-probabilities are "
                "those of logits / temperature. For the most likely tokens pass greedy=True."
            )
        if self.max_turn_length is not None and self.max_turn_length < 1:
            raise ValueError(
                f"max_turn_length must be at least 1, got {self.max_turn_length}. Leave it unset for turns that only "
                "max_completion_length cuts."
            )


@dataclass
class Rollout:
    """One completion, or one episode: the policy's turns and what was answered, one after the other.

    Args:
        completion_ids (`list[int]`): Tokens up to and including the EOS that ended it, never padded.
        logprobs (`list[float]`): One per token; of any value for tokens that the policy did not choose.
        finish_reason (`str`): `"stop"` if it ended by itself, `"length"` if it was cut.
        loss_mask (`list[int]`, *optional*): 0 for tokens that the policy did not choose (tool output).
        weights_version (`int`): The version of the weights that sampled it, as passed to `sync_weights`.
    """

    completion_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    loss_mask: list[int] | None = None
    weights_version: int = 0

    @property
    def is_truncated(self) -> bool:
        return self.finish_reason == "length"

    @property
    def turns(self) -> list[tuple[int, int]]:
        """Start and end of each run of tokens that the policy chose, the end excluded."""
        found, end = [], 0
        for is_mine, run in groupby(self.loss_mask or [1] * len(self.completion_ids)):
            start, end = end, end + sum(1 for _ in run)
            if is_mine:
                found.append((start, end))
        return found
