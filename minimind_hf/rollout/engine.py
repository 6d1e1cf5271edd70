# SPDX-License-Identifier: Apache-2.0
"""The contract between trainers and rollout engines.

Token ids in, token ids out: nothing is decoded and encoded again between the engine and the loss. Log-probabilities
are those of the sampling distribution (the full softmax of logits / temperature) under the weights that sampled.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from torch import nn

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


@dataclass
class Rollout:
    """One completion.

    Args:
        completion_ids (`list[int]`): Tokens up to and including the EOS that ended it, never padded.
        logprobs (`list[float]`): One per token.
        finish_reason (`str`): `"stop"` if an EOS ended it, `"length"` if it was cut.
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


class RolloutEngine(ABC):
    """Draws completions from the policy. Subclass it, or pass any object with `generate` and `sync_weights`.

    Attributes:
        weights_are_shared (`bool`): Whether the engine decodes with the trainer's own weights in its process. Then
            `sync_weights` comes before every rollout, costs nothing, and weights are never old.
    """

    weights_are_shared: bool = False

    @abstractmethod
    def generate(
        self, prompt_ids: Sequence[Sequence[int]], num_generations: int, sampling: SamplingParams
    ) -> list[Rollout]:
        """Draws `num_generations` completions for each prompt.

        Returns:
            `list[Rollout]`, prompt-major: entry `i` belongs to prompt `i // num_generations`.
        """

    @abstractmethod
    def sync_weights(self, model: nn.Module, version: int) -> None:
        """Takes these weights; the following calls of `generate` sample from them."""

    def check_ready(  # noqa: B027 - most engines need nothing
        self, model: nn.Module, max_prompt_length: int | None, max_completion_length: int
    ) -> None:
        """Refuses, before the first step, what cannot work with this policy and these lengths."""

    def close(self) -> None:  # noqa: B027 - most engines have nothing to release
        """Releases what the engine holds. Called once, at the end of the run."""


def shares_weights(engine: object) -> bool:
    """Whether an engine decodes with the trainer's own weights; see [`RolloutEngine`]."""
    return getattr(engine, "weights_are_shared", False)


def check_engine(engine: object) -> None:
    """Refuses an object that is not a rollout engine.

    Raises:
        TypeError: With its class and the missing methods.
    """
    if isinstance(engine, type):
        raise TypeError(f"rollout_engine is the class {engine.__name__}. Pass an instance, {engine.__name__}().")
    missing = [name for name in ("generate", "sync_weights") if not callable(getattr(engine, name, None))]
    if missing:
        raise TypeError(
            f"rollout_engine is a {type(engine).__name__}, which has no {' and no '.join(missing)}. Subclass "
            "minimind_hf.RolloutEngine, or add these methods. To choose an engine by name, set it in the config."
        )


def check_rollouts(
    rollouts: object, num_expected: int, vocab_size: int, engine: object, max_completion_length: int | None = None
) -> None:
    """Refuses rollouts that an engine must not return, before they reach the loss.

    Args:
        rollouts (`list[Rollout]`): What the engine returned.
        num_expected (`int`): Prompts times completions per prompt.
        vocab_size (`int`): Number of ids that the policy embeds.
        engine ([`RolloutEngine`]): Named in errors.
        max_completion_length (`int`, *optional*): Number of the policy's tokens after which a turn is cut.

    Raises:
        ValueError: With the engine's class, the index of the completion and its fault.
    """
    name = type(engine).__name__
    if not isinstance(rollouts, list) or len(rollouts) != num_expected:
        found = f"{len(rollouts)} completions" if isinstance(rollouts, list) else type(rollouts).__name__
        raise ValueError(
            f"Rollout engine {name} returned {found}, expected a list of {num_expected} Rollout "
            "(prompts x num_generations, prompt-major)."
        )
    for index, rollout in enumerate(rollouts):
        fault = _fault(rollout, vocab_size, max_completion_length)
        if fault:
            raise ValueError(f"Rollout engine {name} returned a bad completion at index {index}: {fault}.")


def _fault(rollout: object, vocab_size: int, max_completion_length: int | None) -> str | None:
    if not isinstance(rollout, Rollout):
        return f"it is a {type(rollout).__name__}, not a Rollout"
    ids, logprobs, loss_mask = rollout.completion_ids, rollout.logprobs, rollout.loss_mask
    fault = _fault_of_types(rollout)
    if fault:
        return fault
    if len(ids) == 0:
        return "it has no tokens (an ended completion has at least its EOS)"
    if len(logprobs) != len(ids):
        return f"{len(logprobs)} log-probabilities for {len(ids)} tokens"
    if loss_mask is not None and len(loss_mask) != len(ids):
        return f"a loss_mask of {len(loss_mask)} for {len(ids)} tokens"
    if loss_mask is not None and not set(loss_mask) <= {0, 1}:
        return f"a loss_mask with {sorted(set(loss_mask) - {0, 1})}, expected 0 and 1 only"
    if min(ids) < 0 or max(ids) >= vocab_size:
        return f"token ids from {min(ids)} to {max(ids)} with a vocabulary of {vocab_size}"
    if rollout.finish_reason not in FINISH_REASONS:
        return f"finish_reason {rollout.finish_reason!r}, expected one of {FINISH_REASONS}"
    mine = loss_mask or [1] * len(ids)
    longest = max(sum(turn) for _, turn in groupby(mine))
    if max_completion_length is not None and longest > max_completion_length:
        return f"{longest} tokens in a row, but max_completion_length={max_completion_length} was asked for"
    bad = (i for i, logp in enumerate(logprobs) if mine[i] and not (math.isfinite(logp) and logp <= 1e-3))
    if (position := next(bad, None)) is not None:
        return (
            f"log-probabilities that are not finite numbers of at most 0; the first is {logprobs[position]}, of token "
            f"{position}"
        )
    return None


def _fault_of_types(rollout: Rollout) -> str | None:
    expected = {"completion_ids": (int,), "logprobs": (int, float), "loss_mask": (int,)}
    for name, kinds in expected.items():
        values = getattr(rollout, name)
        if values is None and name == "loss_mask":
            continue
        if not isinstance(values, list):
            return f"its {name} are a {type(values).__name__}, not a list"
        others = [kind.__name__ for kind in set(map(type, values)) if not issubclass(kind, kinds)]
        if others:
            return f"its {name} hold values of type {', '.join(sorted(others))}, expected {kinds[-1].__name__}"
    if not isinstance(rollout.weights_version, int):
        return f"weights_version {rollout.weights_version!r}, expected the int that sync_weights was given"
    return None
