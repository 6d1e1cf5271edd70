# SPDX-License-Identifier: Apache-2.0
"""The contract between trainers and rollout engines.

Token ids in, token ids out: nothing is decoded and encoded again between the engine and the loss. Log-probabilities
are those of the sampling distribution (the full softmax of logits / temperature) under the weights that sampled.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import nn

from .observers import TOOL_WORKERS
from .rounds import play_in_rounds
from .samples import Rollout, SamplingParams
from .session import Session


class RolloutEngine(ABC):
    """Draws completions from the policy. Subclass it, or pass any object with `generate` and `sync_weights`.

    Attributes:
        weights_are_shared (`bool`): Whether the engine decodes with the trainer's own weights in its process. Then
            `sync_weights` comes before every rollout, costs nothing, and weights are never old.
        tool_workers (`int`): Threads on which the sessions of episodes answer.
    """

    weights_are_shared: bool = False
    tool_workers: int = TOOL_WORKERS

    @abstractmethod
    def generate(
        self, prompt_ids: Sequence[Sequence[int]], num_generations: int, sampling: SamplingParams
    ) -> list[Rollout]:
        """Draws `num_generations` completions for each prompt.

        An engine may take a further argument `refill`, a [`Refill`], which sees completions as they end and may ask
        for more prompts meanwhile. All that was asked for is returned, the prompts in the order of asking. The same
        holds for the sessions of `converse`.

        Returns:
            `list[Rollout]`, prompt-major: entry `i` belongs to prompt `i // num_generations`.
        """

    def converse(self, sessions: Sequence[Session], sampling: SamplingParams) -> list[Rollout]:
        """Plays episodes, one per session: turns of the policy, each answered by the session.

        `sampling.max_completion_length` counts all tokens of an episode, answers too, and `max_turn_length` those of
        one turn. An engine asks the session once after every turn, the last one included. Here `generate` draws one
        turn of every session at a time.

        Returns:
            `list[Rollout]`, in the order of the sessions: turn, answer, turn and so on, with a `loss_mask` of 1 at the
            tokens of turns. The finish reason is `"length"` if a turn was cut, or if an answer left no room for
            another token; such an answer is left out.
        """
        return play_in_rounds(self, sessions, sampling)

    @abstractmethod
    def sync_weights(self, model: nn.Module, version: int) -> None:
        """Takes these weights; the following calls of `generate` sample from them."""

    def rest(self) -> None:  # noqa: B027 - most engines hold nothing that the update could use
        """Called after the rollouts of a step, and of an evaluation: nothing is asked for until after the update.

        An engine on the trainer's own device can give memory back, until `sync_weights` or another rollout. Every
        process calls it.
        """

    def measured(self) -> dict[str, tuple[float, float]]:
        """Returns what the engine measured since the last call, for the log.

        Returns:
            `dict[str, tuple[float, float]]`: By name, a sum and the count of what it is a sum over. The mean of all
            processes is logged as `sampling/NAME`, or as `NAME` if that has a `/`; with a count of 0 there is nothing
                to log.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What a run that goes on from a checkpoint needs beyond weights, of kinds that `torch.load` takes with
        `weights_only`."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - most engines have no state
        """Goes on from [`state_dict`], before the first rollout."""

    def check_ready(  # noqa: B027 - most engines need nothing
        self, model: nn.Module, max_prompt_length: int | None, max_completion_length: int
    ) -> None:
        """Refuses, before the first step, what cannot work with this policy and these lengths."""

    def close(self) -> None:  # noqa: B027 - most engines have nothing to release
        """Releases what the engine holds. Called once, at the end of the run."""


def shares_weights(engine: object) -> bool:
    """Whether an engine decodes with the trainer's own weights; see [`RolloutEngine`]."""
    return getattr(engine, "weights_are_shared", False)
