# SPDX-License-Identifier: Apache-2.0
"""What goes into a rollout engine and what comes out: how completions are drawn, and completions."""

import math
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

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
        top_k (`int`): Draw from this many of the most likely tokens. 0: from all.
        top_p (`float`): Draw from the fewest of the most likely tokens that have this probability together. 1: from
            all.
        min_p (`float`): Draw from tokens with at least this share of the probability of the most likely one. 0: from
            all. All three apply one after the other to the logits divided by the temperature, `top_k` first.
    """

    max_completion_length: int
    temperature: float
    eos_token_ids: tuple[int, ...]
    seed: int = 0
    greedy: bool = False
    max_turn_length: int | None = None
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

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
        if self.top_k < 0:
            raise ValueError(f"top_k must be at least 0, got {self.top_k}. 0 draws from all tokens.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}. 1 draws from all tokens.")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p must be at least 0 and at most 1, got {self.min_p}. 0 draws from all tokens.")

    @property
    def is_truncated(self) -> bool:
        """Whether tokens are drawn from less than the whole vocabulary."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


@dataclass
class Rollout:
    """One completion, or one episode: the policy's turns and what was answered, one after the other.

    Args:
        completion_ids (`list[int]`): Tokens up to and including the EOS that ended it, never padded.
        logprobs (`list[float]`): One per token; of any value for tokens that the policy did not choose.
        finish_reason (`str`): `"stop"` if it ended by itself, `"length"` if it was cut.
        loss_mask (`list[int]`, *optional*): 0 for tokens that the policy did not choose (tool output).
        weights_version (`int`): The version of the weights that sampled it, as passed to `sync_weights`.
        kept (`list[np.ndarray]`, *optional*): The set that each token was drawn from: its ids as integers, or a bit
            for each id of the vocabulary in uint8, as `np.packbits` with `bitorder="little"` makes them; empty for
            tokens that the policy did not choose. `logprobs` are over the sets. Unset: drawn from all tokens.
    """

    completion_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    loss_mask: list[int] | None = None
    weights_version: int = 0
    kept: list[np.ndarray] | None = field(default=None, compare=False)

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
