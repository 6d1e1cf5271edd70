# SPDX-License-Identifier: Apache-2.0
"""What tools and environments add to an evaluation: their settings, the agent of each model, and its prompts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
from transformers import PreTrainedTokenizerBase

from ..agent import Agent
from ..bounds import Count, Positive, check_settings
from ..data import PromptDataset
from ..data.prompts import say_how_many_think
from ..data.tokenizers import say_plain_prompts
from ..flags import flag
from .settings import EvalSettings


@dataclass(frozen=True)
class EpisodeSettings:
    """Settings of episodes, by the names of training; each one is a flag of `minimind-hf eval`.

    Args:
        max_turns (`int`, *optional*), max_turn_length (`int`, *optional*), max_observation_length (`int`, *optional*),
        tool_workers (`int`), tool_timeout (`float`): See `AgentSettings`.

    Raises:
        ValueError: If a value is out of bounds.
    """

    max_turns: Count | None = flag(
        None, "turns after which an episode ends (default: when a turn has no call)", metavar="N"
    )
    max_turn_length: Count | None = flag(
        None, "tokens after which one turn is cut (default: those of --max_completion_length)", metavar="N"
    )
    max_observation_length: Count | None = flag(
        None, "tokens after which the answer of a tool is cut (default: no limit)", metavar="N"
    )
    tool_workers: Count = flag(8, "threads that run tools and environments (default %(default)s)", metavar="N")
    tool_timeout: Positive = flag(
        30.0, "seconds after which a call of a tool is given up (default %(default)s)", metavar="S"
    )

    def __post_init__(self):
        check_settings(self)


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
