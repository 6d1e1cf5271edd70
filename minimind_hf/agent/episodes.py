# SPDX-License-Identifier: Apache-2.0
"""One episode: the policy's turns, and what tools or an environment answer to them.

An episode is what a rollout engine plays (it implements [`Session`]). It reads each turn, runs the calls in it, and
gives back the token ids of the answer. Nothing that a policy writes ends a run: a call that cannot be parsed or made
is answered by a sentence that says so, and counted.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from .calls import AssistantTurn, TurnReader
from .conversation import Turn
from .environments import EnvironmentKind
from .errors import AgentError
from .results import result_text
from .tools import Toolbox
from .turns import TurnTemplate
from .workers import ToolRunner, ToolTimeout

_TAIL = 16  # tokens at the end of a prompt, where a chat template opens the thought


@dataclass(frozen=True)
class EpisodeRules:
    """What all episodes of a run have in common.

    Args:
        tokenizer: Of the policy.
        reader ([`TurnReader`]): Reads the calls of a turn.
        template ([`TurnTemplate`]): Writes what stands between two turns.
        runner ([`ToolRunner`]): Calls tools and environments.
        max_turns (`int`, *optional*): Turns after which an episode ends.
        max_observation_length (`int`): Tokens after which the answer of a tool is cut.
    """

    tokenizer: PreTrainedTokenizerBase
    reader: TurnReader
    template: TurnTemplate
    runner: ToolRunner
    max_turns: int | None
    max_observation_length: int


class Episode:
    """An episode of one completion.

    Args:
        prompt (`dict`): An example of a `PromptDataset`, with what the environment said at the start.
        toolbox ([`Toolbox`]): The tools that the policy may call.
        rules ([`EpisodeRules`]): What all episodes have in common.
        kind ([`EnvironmentKind`], *optional*), environment (*optional*): Its environment.

    Attributes:
        messages (`list[dict]`): The completion as messages: the policy's turns, and what was answered.
        turn_rewards (`list[float]`, *optional*): One per turn; unset if no reply had a reward.
        calls (`int`): Calls that the policy made, those that failed included.
        failed_calls (`Counter`): Of these, by what was wrong: `unparsed`, `unknown`, `arguments`, `raised`, `timeout`.
        cut_observations (`int`): Answers that were cut.
        tool_seconds (`float`): Time spent in tools and the environment.
        reached_max_turns (`bool`): Whether the last allowed turn made a call or was still to be answered.
        is_finished (`bool`): Whether the policy or the environment ended the episode.
    """

    def __init__(
        self,
        prompt: dict[str, Any],
        toolbox: Toolbox,
        rules: EpisodeRules,
        kind: EnvironmentKind | None = None,
        environment: Any = None,
    ):
        self.prompt, self.prompt_ids = prompt, prompt["prompt_ids"]
        self.environment = environment
        self.messages: list[dict[str, Any]] = []
        self.calls, self.failed_calls = 0, Counter()
        self.cut_observations, self.tool_seconds = 0, 0.0
        self.reached_max_turns = self.is_finished = False
        self._toolbox, self._rules, self._kind = toolbox, rules, kind
        self._rewards: list[float | None] = []
        self._before = self._end_of(self.prompt_ids)  # the text in front of the next turn

    @property
    def row(self) -> dict[str, Any]:
        return self.prompt["columns"]

    @property
    def num_turns(self) -> int:
        """Turns of the policy so far."""
        return len(self._rewards)

    @property
    def turn_rewards(self) -> list[float] | None:
        if all(reward is None for reward in self._rewards):
            return None
        return [reward or 0.0 for reward in self._rewards]

    @property
    def counts(self) -> dict[str, Any]:
        """What happened in the episode, for the records of runs and evaluations."""
        return {
            "turns": self.num_turns,
            "calls": self.calls,
            "failed_calls": dict(self.failed_calls),
            "cut_observations": self.cut_observations,
            "reached_max_turns": self.reached_max_turns,
        }

    def observe(self, ids: list[int], finish_reason: str) -> list[int] | None:
        """See [`Session.observe`].

        Raises:
            AgentError: If the environment fails.
        """
        read = self._rules.reader.read(ids, self._before, self._toolbox.schemas)
        self.messages.append(read.message)
        self._rewards.append(None)
        if finish_reason == "length":
            return None
        answers = self._answers(read)
        self.messages += answers
        if not answers or self.reached_max_turns:
            return None
        between = self._rules.template.ids_between(answers, self.prompt["template_kwargs"])
        self._before = self._end_of(between)
        return between

    def answer_call(self, call: dict[str, Any]) -> dict[str, Any]:
        """Makes one call, and returns what came of it as a message from its tool."""
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        return {"role": "tool", "name": name, "content": self._cut(self._called(name, arguments))}

    def answer_fault(self, fault: str) -> dict[str, Any]:
        """Answers a call that cannot be read."""
        return {"role": "tool", "name": "unknown", "content": self._failed("unparsed", fault)}

    def release(self) -> None:
        """Frees the environment, unless a call that was given up is still running in it."""
        if self.environment is not None and not self.failed_calls["timeout"]:
            self._kind.give_back(self.environment)
        self.environment = None

    def _answers(self, read: AssistantTurn) -> list[dict[str, Any]]:
        """What the policy reads next; nothing if the episode is over."""
        is_last = self.num_turns == self._rules.max_turns
        calls = read.message.get("tool_calls", [])
        if self._toolbox and (calls or read.faults):
            self.calls += len(calls) + len(read.faults)
            self.reached_max_turns = is_last
            return [] if is_last else [*map(self.answer_call, calls), *map(self.answer_fault, read.faults)]
        if self._kind is not None and self._kind.is_conversation:
            return self._reply(Turn(read.message, self.num_turns - 1), is_last)
        self.is_finished = True
        return []

    def _reply(self, turn: Turn, is_last: bool) -> list[dict[str, Any]]:
        where = f"at turn {self.num_turns} of an episode of row {self.prompt['index']}"
        reply = self._timed(self._kind.respond, self.environment, turn, where, self._rules.runner)
        self._rewards[-1] = reply.reward
        self.is_finished = reply.done
        self.reached_max_turns = is_last and not reply.done
        if reply.done:
            return []
        return [{**message, "content": self._cut(message["content"])} for message in reply.messages]

    def _called(self, name: str, arguments: dict[str, Any]) -> str:
        if fault := self._toolbox.check_arguments(name, arguments):
            return self._failed("arguments" if name in self._toolbox else "unknown", fault)
        function = self._function(name)
        try:
            return result_text(self._timed(self._rules.runner, function, **arguments))
        except ToolTimeout as error:
            return self._failed("timeout", f"{name}: {error}.")
        except AgentError:
            raise
        except (Exception, SystemExit) as error:
            return self._failed("raised", f"{name}: {error or type(error).__name__}")

    def _function(self, name: str) -> Callable:
        return self._toolbox[name].function if self._kind is None else self._kind.function(self.environment, name)

    def _failed(self, kind: str, why: str) -> str:
        self.failed_calls[kind] += 1
        return f"Error: {why}"

    def _timed(self, function: Callable, /, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            self.tool_seconds += time.perf_counter() - start

    def _cut(self, text: str) -> str:
        """The text of an observation, with a mark where it is cut."""
        kept, is_cut = self._rules.template.untrusted.cut(text, self._rules.max_observation_length)
        if not is_cut:
            return text
        self.cut_observations += 1
        return f"{kept} [... {len(text) - len(kept)} more characters]"

    def _end_of(self, ids: list[int]) -> str:
        return self._rules.tokenizer.decode(ids[-_TAIL:])
