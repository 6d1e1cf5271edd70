# SPDX-License-Identifier: Apache-2.0
"""What tools and environments add to an evaluation: the agent of each model, and its prompts."""

from collections.abc import Callable, Sequence
from typing import Any

import datasets
from transformers import PreTrainedTokenizerBase

from ..agent import Agent
from ..data import PromptDataset
from ..data.prompts import say_how_many_think
from ..data.tokenizers import say_plain_prompts
from .settings import EpisodeSettings, EvalSettings


def agent_for(
    tokenizer: PreTrainedTokenizerBase,
    tools: Sequence[Callable],
    environment_factory: Any,
    episodes: EpisodeSettings,
    settings: EvalSettings,
) -> Agent | None:
    """Returns the tools and environments of one model, as a trainer would make them; `None` if there are none.

    Raises:
        AgentError: If one of them cannot be used.
        ValueError: If episodes cannot be written with the chat template of the model.
    """
    if not tools and environment_factory is None:
        return None
    agent = Agent(
        tools,
        environment_factory,
        tokenizer,
        (tokenizer.eos_token_id,),
        max_turns=episodes.max_turns,
        max_observation_length=episodes.max_observation_length or settings.max_completion_length,
        tool_timeout=episodes.tool_timeout,
        tool_workers=episodes.tool_workers,
    )
    agent.expect_all_rewards()  # the result must not depend on what is played together
    return agent


def prompts_of(
    rows: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, settings: EvalSettings, agent: Agent | None = None
) -> PromptDataset:
    """Returns the prompts of a model, and says how they are rendered.

    Raises:
        ValueError: If a row cannot be rendered, or names a tool or an environment that does not exist.
    """
    with_tools = {} if agent is None else {"tools": agent.schemas, "implemented": agent.tool_names}
    if agent is not None:
        rows = agent.with_prompts(rows)
        agent.check_rows(rows)
    prompts = PromptDataset(rows, tokenizer, thinking_ratio=settings.thinking_ratio, seed=settings.seed, **with_tools)
    if agent is not None:
        agent.check_prompts(prompts)
    say_how_many_think(prompts, settings.thinking_ratio)
    say_plain_prompts(tokenizer, prompts.conversational)
    return prompts
