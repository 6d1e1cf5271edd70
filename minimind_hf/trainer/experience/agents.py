# SPDX-License-Identifier: Apache-2.0
"""From the arguments of a trainer to its tools, environments and rewards."""

from typing import Any

from transformers import PreTrainedTokenizerBase

from ...agent import Agent, AgentError
from ...rewards import RewardScorer
from ..settings.base import RLConfig


def make_agent(
    args: RLConfig, tools: Any, environment_factory: Any, rollout_func: Any, tokenizer: PreTrainedTokenizerBase
) -> Agent | None:
    """Returns the tools and environments of a run, `None` if it has none.

    Raises:
        AgentError: If one of them, or the chat template, cannot be used.
    """
    if not tools and environment_factory is None:
        return None
    if rollout_func is not None:
        raise AgentError(
            "rollout_func draws whole completions, so nobody would call tools or an environment_factory. Leave out "
            "one of them."
        )
    return Agent(
        tools,
        environment_factory,
        tokenizer,
        (tokenizer.eos_token_id,),
        template_kwargs=args.chat_template_kwargs,
        max_prompt_length=args.max_prompt_length,
        max_turns=args.max_turns,
        max_observation_length=args.max_observation_length or args.max_completion_length,
        tool_timeout=args.tool_timeout,
        tool_workers=args.tool_workers,
    )


def check_reward_source(reward_funcs: Any, environments: Any) -> None:
    """Refuses a run without any reward.

    Raises:
        ValueError: If there is neither a reward function nor an environment that rewards.
    """
    if reward_funcs is None and not environments:
        raise ValueError(
            "No reward source provided: reward_funcs is None. Pass at least one reward function, or an "
            "environment_factory whose environments have get_reward() or give rewards in their replies."
        )


def make_scorer(
    reward_funcs: Any, processing_classes: Any, args: RLConfig, agent: Agent | None, may_be_empty: bool = False
) -> RewardScorer:
    """Returns the reward functions: those given, and the rewards of environments, whose weight is 1.

    Raises:
        ValueError: If there is no reward at all, unless the algorithm needs none (`may_be_empty`).
    """
    added = [] if agent is None else agent.reward_functions(are_only=not reward_funcs and not may_be_empty)
    if not may_be_empty:
        check_reward_source(reward_funcs, added)
    given = list(reward_funcs) if isinstance(reward_funcs, list | tuple) else [reward_funcs]
    if reward_funcs is None:
        given = []
    weights = all_weights(args, agent)
    if isinstance(processing_classes, list | tuple):
        processing_classes = [*processing_classes, *[None] * len(added)]
    further = {"trust_remote_code": args.trust_remote_code}
    functions = [*given, *added]
    return RewardScorer(functions, weights, processing_classes, model_kwargs=further, may_be_empty=may_be_empty)


def all_weights(args: RLConfig, agent: Agent | None) -> list[float] | None:
    """The weights of the reward functions, as they are set now, and those of environments."""
    if agent is None or args.reward_weights is None:
        return args.reward_weights
    return [*args.reward_weights, *[1.0] * len(agent.reward_functions(are_only=False))]
