# SPDX-License-Identifier: Apache-2.0
"""The trainer's side of a rollout engine: when it gets weights, and which results are refused."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...agent import Agent, Episode
from ...data import PromptDataset
from ...data.tokenizers import say_turn_end
from ...forward.introspection import context_length, eos_token_ids, vocabulary_size
from ...rollout import (
    Rollout,
    RolloutEngine,
    SamplingParams,
    check_engine,
    check_episodes,
    check_rollouts,
    play_in_rounds,
    shares_weights,
    takes_refill,
)
from ...rollout.agreement import failing_together
from ..distributed.sharding import whole_weights
from ..models.weights import check_finite
from ..settings.base import RLConfig
from .experience import Experience
from .rollout_function import RolloutFunction, call_rollout_function


def rollouts_for(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    engine: RolloutEngine,
    args: RLConfig,
    prompts: dict[str, Any],
    agent: Agent | None = None,
    function: RolloutFunction | None = None,
) -> "Rollouts":
    """Makes [`Rollouts`] of a policy, once the engine can work with it and its context has room for the prompts.

    Args:
        prompts (`dict`): Those of training and evaluation, by the names of the trainer's arguments.
    """
    ends, trained_on = eos_token_ids(policy, tokenizer), prompts["train_dataset"]
    say_turn_end(tokenizer, ends, trained_on is not None and trained_on.conversational)
    rollouts = Rollouts(engine, args, vocabulary_size(policy), ends, context_length(policy), agent, function)
    with whole_weights(policy):
        rollouts.check_ready(policy)
    rollouts.check_prompts(**prompts)
    return rollouts


class Rollouts:
    """Samples completions from the policy.

    Args:
        engine ([`RolloutEngine`]): The engine that samples.
        args ([`RLConfig`]): Settings.
        vocab_size (`int`): Number of ids that the policy embeds.
        eos_token_ids (`tuple[int, ...]`): Ids that end a completion.
        context (`int`, *optional*): Maximum number of tokens of prompt and completion together.
        agent ([`Agent`], *optional*): Tools and environments, if completions are episodes.
        function (`Callable`, *optional*): trl's `rollout_func`, bound to its trainer, in place of the engine.

    Raises:
        TypeError: If the engine lacks a method.
        ValueError: If `sync_every` does not apply to the engine.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        args: RLConfig,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        context: int | None = None,
        agent: Agent | None = None,
        function: RolloutFunction | None = None,
    ):
        check_engine(engine)
        if shares_weights(engine) and args.sync_every > 1:
            raise ValueError(
                f"sync_every={args.sync_every} keeps older weights in a rollout server, but {type(engine).__name__} "
                "decodes with the trainer's own weights, which are never old. Leave sync_every at 1."
            )
        self.engine, self._args = engine, args
        self._vocab_size, self.eos_token_ids, self._context = vocab_size, eos_token_ids, context
        self._agent, self._function = agent, function
        self._until_sync = self._synced_at = 0
        self._weights_are_due = True

    def check_ready(self, policy: PreTrainedModel) -> None:
        """Asks the engine whether it can work with this policy."""
        check = getattr(self.engine, "check_ready", None)
        if check is not None:
            check(policy, self._args.max_prompt_length, self._args.max_completion_length)
        check = getattr(self.engine, "check_sessions", None)
        if self._agent is not None and check is not None:
            check(policy)

    def check_prompts(self, **sets: PromptDataset | dict[str, PromptDataset] | None) -> None:
        """Refuses prompts that leave no room in the model's context for a completion, before any time is spent.

        Args:
            sets: Prompts by the name of their argument.

        Raises:
            ValueError: Naming the set, the row and the setting.
        """
        if self._context is None:
            return
        for name, prompts in sets.items():
            for part in prompts.values() if isinstance(prompts, dict) else [prompts]:
                found = part and part.first_longer_than(self._context - self._args.max_completion_length)
                if found:
                    raise ValueError(f"{name}, row {found[0]}: {self._no_room(found[1])}")

    @property
    def can_refill(self) -> bool:
        """Whether a rollout can be scored and refilled while it runs."""
        if self._agent is not None:
            return self._agent.settles_rewards and takes_refill(getattr(self.engine, "converse", None))
        return self._function is None and takes_refill(self.engine.generate)

    def begin_training_rollout(self) -> None:
        """Announces a training rollout. Every `sync_every`-th one uses the newest weights."""
        self._weights_are_due |= self._until_sync == 0
        self._until_sync = (self._until_sync or self._args.sync_every) - 1

    def begin_evaluation(self) -> None:
        """Announces an evaluation. It uses the newest weights, and so do the rollouts after it until the next sync."""
        self._weights_are_due = True

    def draw(self, policy: PreTrainedModel, experience: Experience) -> list[Rollout]:
        """Returns the completions of an experience, prompt-major; every process calls it.

        Raises:
            ValueError: If prompts and completions exceed the model's context, or the engine returned completions that
                cannot be trained on.
            NotFiniteError: If the policy's weights are not finite, so that no engine could sample.
        """
        # Together, before the engine's own exchange: a process that fails here must not meet the others there.
        with failing_together("checking the prompts of a rollout"):
            self._check_context(experience.prompts)
        try:
            return self._draw(policy, experience)
        except Exception as error:
            check_finite(policy, experience.step + 1, self._args.output_dir, error)
            raise

    def _draw(self, policy: PreTrainedModel, experience: Experience) -> list[Rollout]:
        if self._weights_are_due or shares_weights(self.engine):
            self.engine.sync_weights(policy, experience.step)
            self._weights_are_due, self._synced_at = False, experience.step
        experience.behind = experience.step - self._synced_at
        if self._agent is not None:
            return self._play(experience)
        if self._function is not None:
            function, ends = self._function, self.eos_token_ids
            rollouts, experience.given_prompts = call_rollout_function(function, experience, ends)
        else:
            asked, count, sampling = self.begin(experience), experience.num_generations, self.sampling(experience)
            if experience.refill is not None:  # which has each group checked before it is scored
                return self.engine.generate(asked, count, sampling, refill=experience.refill)
            rollouts = self.engine.generate(asked, count, sampling)
        self.check(experience, rollouts)
        return rollouts

    def sampling(self, experience: Experience) -> SamplingParams:
        """How the completions of an experience are drawn, by the settings as they are now."""
        args = self._args
        return SamplingParams(
            args.max_completion_length,
            args.temperature,
            self.eos_token_ids,
            experience.seed,
            max_turn_length=args.max_turn_length,
            top_k=args.top_k or 0,
            top_p=args.top_p,
            min_p=args.min_p or 0.0,
        )

    def begin(self, experience: Experience) -> list[list[int]] | list[Episode]:
        """Returns what an engine draws of an experience: the tokens of its prompts, or its episodes, which begin.

        Raises:
            ValueError: If a prompt and a completion exceed the model's context.
        """
        if self._agent is None:
            self._check_context(experience.prompts)
            return experience.prompt_ids
        experience.episodes = self._agent.start(
            experience.prompts, experience.num_generations, experience.seed, experience.num_stand_ins
        )
        # Environments may have added to prompts.
        self._check_context([episode.prompt for episode in experience.episodes])
        return experience.episodes[: experience.num_counted]  # a stand-in costs no game

    def check(self, experience: Experience, rollouts: list[Rollout]) -> None:
        """Refuses completions of an experience that cannot be trained on.

        Raises:
            ValueError: With the number of the completion and its fault.
        """
        sampling = self.sampling(experience)
        if self._agent is not None:
            check_episodes(rollouts, experience.num_counted, self._vocab_size, self.engine, sampling)
        else:
            expected, most = len(experience.prompts) * experience.num_generations, sampling.max_completion_length
            check_rollouts(rollouts, expected, self._vocab_size, self.engine, most, sampling)
        self._check_lengths(experience, rollouts)

    def _play(self, experience: Experience) -> list[Rollout]:
        played, sampling = self.begin(experience), self.sampling(experience)
        self.engine.tool_workers = self._args.tool_workers
        if experience.refill is not None:
            return self.engine.converse(played, sampling, refill=experience.refill)
        converse = getattr(self.engine, "converse", None) or partial(play_in_rounds, self.engine)
        rollouts = converse(played, sampling)
        self.check(experience, rollouts)
        return [*rollouts, *[self._not_played(experience.step) for _ in experience.episodes[len(played) :]]]

    def _not_played(self, step: int) -> Rollout:
        """An episode that counts nowhere: one token, which the policy did not draw."""
        return Rollout([self.eos_token_ids[0]], [0.0], "stop", [0], step)

    def _check_context(self, prompts: Sequence[dict]) -> None:
        for prompt in prompts:
            length = len(prompt["prompt_ids"])
            if self._context is not None and length + self._args.max_completion_length > self._context:
                raise ValueError(f"row {prompt['index']}: {self._no_room(length)}")

    def _no_room(self, prompt: int) -> str:
        completion = self._args.max_completion_length
        remedy = "Lower max_completion_length."
        if completion < self._context:
            remedy = (
                f"Set max_prompt_length to at most {self._context - completion}; longer prompts are cut on the left "
                "or dropped (overlong_prompts)."
            )
        return (
            f"A prompt of {prompt} tokens and a completion of up to {completion} (max_completion_length) do not "
            f"fit into the model's context of {self._context} tokens (max_position_embeddings). {remedy}"
        )

    def _check_lengths(self, experience: Experience, rollouts: list[Rollout]) -> None:
        """Refuses completions that tool responses have made longer than the model's context."""
        for index, rollout in enumerate(rollouts):
            prompt, completion = len(experience.prompt_of(index)["prompt_ids"]), len(rollout.completion_ids)
            if self._context is not None and prompt + completion > self._context:
                raise ValueError(
                    f"Rollout engine {type(self.engine).__name__} returned a bad completion at index {index}: its "
                    f"{completion} tokens and the {prompt} of its prompt do not fit into the model's context of "
                    f"{self._context} tokens (max_position_embeddings). Let the engine end it earlier."
                )

    def state_dict(self) -> dict[str, Any]:
        """What the engine needs to go on, see [`RolloutEngine.state_dict`], which an engine object may lack."""
        state = getattr(self.engine, "state_dict", None)
        return {} if state is None else state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self.engine.load_state_dict(state)

    def rest(self) -> None:
        """Tells the engine that nothing is sampled until after the update; every process calls it."""
        rest = getattr(self.engine, "rest", None)
        if rest is not None:
            rest()

    def close(self) -> None:
        close = getattr(self.engine, "close", None)
        if close is not None:
            close()
