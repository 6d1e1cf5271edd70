# SPDX-License-Identifier: Apache-2.0
"""Classes of environments: what they offer, and their instances, one for each episode that runs.

As in trl, an environment is made once and reset often: `environment_factory()` is called when no free instance is
left. `reset(**row)` begins an episode, other public methods are tools, and `get_reward()` adds a reward.
"""

import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

from .conversation import Reply, Turn, as_messages, check_reply
from .errors import AgentError
from .states import has_state, load_state, state_of
from .tools import Toolbox, public_methods
from .workers import ToolRunner, ToolTimeout


class EnvironmentKind:
    """One class of environments.

    Args:
        factory (`Callable`): Makes an instance.
        name (`str`, *optional*): The value of a row's `environment` that chooses it.
        tools (`Sequence[Callable]`): Further tools that the episodes have.

    Attributes:
        factory (`Callable`): Makes an instance.
        label (`str`): The name of the class, under which its reward is logged.
        toolbox (`Toolbox`): The further tools, and the public methods of the class.
        is_conversation (`bool`): Whether it answers turns, see [`Conversation`].
        has_reward (`bool`): Whether it has `get_reward`.
        gives_rewards (`bool`): Whether a reply is known to have had a reward; then one without counts 0.
        has_state (`bool`): Whether its instances keep something across episodes that a checkpoint is to hold.

    Raises:
        AgentError: If no instance can be made, or it has no `reset`, or a state that cannot be saved.
    """

    def __init__(self, factory: Callable[[], Any], name: str | None = None, tools: Sequence[Callable] = ()):
        self.factory, self.name = factory, name
        self._where = "environment_factory" if name is None else f"environment_factory[{name!r}]"
        where, probe = self._where, self.make()
        self.type = type(probe)
        self.label = self.type.__name__
        if not callable(getattr(probe, "reset", None)):
            raise AgentError(
                f"{where} makes a {self.label}, which has no method reset. Give it reset(self, **row), which begins "
                "an episode and returns None or a text for the policy."
            )
        self.is_conversation = callable(getattr(probe, "respond", None))
        self.has_reward = callable(getattr(probe, "get_reward", None))
        self.gives_rewards = False
        self.has_state = has_state(probe, where)
        if self.has_state:
            state_of(probe, self.label)  # to find now what the first checkpoint could not hold
        methods = [] if self.is_conversation else public_methods(probe)
        self._methods = {method.__name__ for method in methods}
        self.toolbox = Toolbox([*tools, *methods])
        self._free = [probe]
        self._lock = threading.Lock()

    def take(self) -> Any:
        """A free instance, or a new one."""
        instance = self.take_free()
        return self.make() if instance is None else instance

    def take_free(self) -> Any | None:
        """A free instance; `None` if there is none."""
        with self._lock:
            return self._free.pop() if self._free else None

    def give_back(self, instance: Any) -> None:
        """Frees an instance for another episode."""
        with self._lock:
            self._free.append(instance)

    def states(self) -> list[Any]:
        """What the free instances keep across episodes, in their order.

        Raises:
            AgentError: If a `state_dict` fails, or a checkpoint cannot hold what it returned.
        """
        with self._lock:
            return [state_of(instance, self.label) for instance in self._free] if self.has_state else []

    def load_states(self, states: Sequence[Any]) -> None:
        """Goes on with instances that are in these states, and no others.

        Raises:
            AgentError: If a state does not fit.
        """
        if not self.has_state:
            return
        with self._lock:
            self._free = [self._free[n] if n < len(self._free) else self.make() for n in range(len(states))]
            for instance, state in zip(self._free, states, strict=True):
                load_state(instance, state, self.label)

    def function(self, instance: Any, tool: str) -> Callable:
        """The function behind the name of a tool: of this instance, if it is one of its methods."""
        return getattr(instance, tool) if tool in self._methods else self.toolbox[tool].function

    def reset(self, instance: Any, row: dict[str, Any], where: str, run: ToolRunner) -> str | list[dict] | None:
        """Begins an episode and returns what the environment says before the first turn.

        Raises:
            AgentError: If it fails, or returns anything but a text, messages or `None`.
        """
        said = self._call(run, f"{self.label}.reset, {where}", instance.reset, **_accepted(instance.reset, row))
        if isinstance(said, str | None):
            return said
        return as_messages(said, f"{self.label}.reset, {where},")

    def respond(self, instance: Any, turn: Turn, where: str, run: ToolRunner) -> Reply:
        """The answer to a turn, checked.

        Raises:
            AgentError: If it fails or returns something else.
        """
        where = f"{self.label}.respond, {where}"
        return check_reply(self._call(run, where, instance.respond, turn), f"{where},")

    def make(self) -> Any:
        """A new instance.

        Raises:
            AgentError: If the factory fails.
        """
        try:
            return self.factory()
        except Exception as error:
            raise AgentError(
                f"{self._where} raised {type(error).__name__}: {error} It is called without arguments to make an "
                "environment; bind some with functools.partial."
            ) from error

    def _call(self, run: ToolRunner, where: str, method: Callable, /, *args: Any, **kwargs: Any) -> Any:
        """Calls a method whose failure cannot be an observation, since it says nothing about the policy."""
        try:
            return run(method, *args, **kwargs)
        except ToolTimeout as error:
            raise AgentError(f"{where}: {error} (tool_timeout). Make it faster, or raise tool_timeout.") from error
        except AgentError:
            raise
        except (Exception, SystemExit) as error:
            raise AgentError(f"{where} raised {type(error).__name__}: {error}") from error


def environment_kinds(
    factory: Callable | dict[str, Callable], tools: Sequence[Callable] = ()
) -> dict[str | None, EnvironmentKind]:
    """The environments of a run by the name that rows choose them by; `None` is the only one.

    Args:
        factory (`Callable` or `dict[str, Callable]`): trl's `environment_factory`.
        tools (`Sequence[Callable]`): Tools that episodes have beside their environment's methods.

    Raises:
        AgentError: If something in it is not a factory, or makes environments that cannot be used.
    """
    by_name = factory if isinstance(factory, dict) else {None: factory}
    if not by_name:
        raise AgentError("environment_factory is an empty dictionary. Give it at least one {name: factory}.")
    for name, each in by_name.items():
        if not callable(each):
            raise AgentError(
                f"environment_factory{'' if name is None else f'[{name!r}]'} is {each!r:.80}, a {type(each).__name__}"
                ", expected a class or another callable that makes an environment."
            )
    return {name: EnvironmentKind(each, name, tools) for name, each in by_name.items()}


def rewards_of(kind: EnvironmentKind, is_only: bool) -> list[Callable]:
    """The reward functions of a kind of environments, with the name of the class, under which they are logged.

    Args:
        kind ([`EnvironmentKind`]): Its `get_reward`, and the rewards of its replies.
        is_only (`bool`): Whether there is no other reward, so that replies without one count 0.
    """
    functions = []
    if kind.is_conversation:
        functions.append(_rewards_in_replies(kind, is_only and not kind.has_reward))
    if kind.has_reward:
        functions.append(_reward_at_the_end(kind))
    return functions


def _rewards_in_replies(kind: EnvironmentKind, is_only: bool) -> Callable:
    def rewards(
        environments: Sequence[Any], turn_rewards: Sequence[list[float] | None], num_turns: Sequence[int], **_: Any
    ) -> list[list[float] | None]:
        own = [type(each) is kind.type for each in environments]
        found = any(given is not None for given, mine in zip(turn_rewards, own, strict=True) if mine)
        if not (is_only or kind.gives_rewards or found):
            return [None] * len(own)
        # An episode without any reward beside others that have some only ended before.
        pairs = zip(turn_rewards, num_turns, own, strict=True)
        return [(given or [0.0] * turns) if mine else None for given, turns, mine in pairs]

    rewards.__name__ = f"{kind.label}_turns" if kind.has_reward else kind.label
    return rewards


def _reward_at_the_end(kind: EnvironmentKind) -> Callable:
    def asked(environments: Sequence[Any]) -> list[Any]:
        return [each.get_reward() if type(each) is kind.type else None for each in environments]

    if inspect.iscoroutinefunction(kind.type.get_reward):

        async def get_reward(environments: Sequence[Any], **_: Any) -> list[float | None]:
            return [None if each is None else await each for each in asked(environments)]
    else:

        def get_reward(environments: Sequence[Any], **_: Any) -> list[float | None]:
            return asked(environments)

    get_reward.__name__ = kind.label
    return get_reward


def _accepted(method: Callable, row: dict[str, Any]) -> dict[str, Any]:
    """The columns that a method takes: all of them with `**row`, else those that it names."""
    parameters = inspect.signature(method).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return row
    return {name: value for name, value in row.items() if name in parameters}
