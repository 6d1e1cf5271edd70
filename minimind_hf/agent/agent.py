# SPDX-License-Identifier: Apache-2.0
"""What a trainer needs of tools and environments: which tools a row has, its episodes, and the rewards they add."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from ..data import PromptDataset
from ..data.rendering import PromptRenderer
from .calls import TurnReader
from .environments import EnvironmentKind, environment_kinds, rewards_of
from .episodes import Episode, EpisodeRules
from .errors import AgentError
from .games import environment_factory_of
from .tools import Toolbox
from .turns import TurnTemplate
from .workers import ToolRunner

COLUMN = "environment"
"""The column of a row that names its environment, where there are several."""
_EMPTY = [{"role": "user", "content": ""}]


class Agent:
    """The tools and environments of a run.

    Args:
        tools (`Sequence[Callable]`, *optional*): Functions that every episode may call.
        environment_factory (`Callable` or `dict[str, Callable]`, *optional*): Makes environments; a dictionary is
            chosen from by the row's `environment`.
        tokenizer: Of the policy, with a chat template that knows tools.
        eos_token_ids (`tuple[int, ...]`): What ends a turn of the policy.
        template_kwargs (`dict`, *optional*): Further arguments of the chat template.
        max_prompt_length (`int`, *optional*): Tokens to which a prompt is cut on the left.
        max_turns (`int`, *optional*), max_observation_length (`int`), tool_timeout (`float`), tool_workers (`int`):
            See `AgentSettings`.

    Raises:
        AgentError: If a tool, an environment or the chat template cannot be used.
    """

    def __init__(
        self,
        tools: Sequence[Callable] | None,
        environment_factory: Callable | dict[str, Callable] | None,
        tokenizer: PreTrainedTokenizerBase,
        eos_token_ids: tuple[int, ...],
        *,
        template_kwargs: dict[str, Any] | None = None,
        max_prompt_length: int | None = None,
        max_turns: int | None,
        max_observation_length: int,
        tool_timeout: float,
        tool_workers: int,
    ):
        tools, environment_factory = list(tools or []), environment_factory_of(environment_factory)
        self._toolbox = Toolbox(tools)
        self._kinds = None if environment_factory is None else environment_kinds(environment_factory, tools)
        self._several = isinstance(environment_factory, dict)
        self._workers = tool_workers
        self._reward_alone = False  # whether there are no other rewards than those of environments
        self._max_prompt_length = max_prompt_length
        self._renderer = PromptRenderer(tokenizer, True, template_kwargs)
        self._rules = EpisodeRules(
            tokenizer,
            TurnReader(tokenizer, eos_token_ids, self.has_tools),
            self._proved_template(tokenizer, eos_token_ids),
            ToolRunner(tool_timeout),
            max_turns,
            max_observation_length,
        )

    @property
    def has_tools(self) -> bool:
        """Whether some episode has something to call."""
        return any(map(len, self._toolboxes()))

    @property
    def functions(self) -> list[Callable]:
        """All tools."""
        return list({name: tool.function for toolbox in self._toolboxes() for name, tool in toolbox.items()}.values())

    @property
    def factories(self) -> dict[str | None, Callable] | None:
        """What makes environments, by name; `None` if there are none."""
        return None if self._kinds is None else {name: kind.factory for name, kind in self._kinds.items()}

    @property
    def writes_prompts(self) -> bool:
        """Whether an environment can say what each prompt is."""
        return self._kinds is not None

    @property
    def rewards_turns(self) -> bool:
        """Whether some environment can give rewards to single turns."""
        return any(kind.is_conversation for kind in (self._kinds or {}).values())

    @property
    def settles_rewards(self) -> bool:
        """Whether the rewards of an episode do not depend on which others are scored with it."""
        unsettled = [kind for kind in (self._kinds or {}).values() if kind.is_conversation and not kind.gives_rewards]
        return all(self._reward_alone and not kind.has_reward for kind in unsettled)

    @property
    def tool_names(self) -> set[str]:
        """Names of all tools."""
        return {name for toolbox in self._toolboxes() for name in toolbox}

    def reward_functions(self, are_only: bool) -> list[Callable]:
        """The reward functions of the environments, by class; `are_only`: whether there are no others."""
        self._reward_alone |= are_only
        by_type = {kind.type: kind for kind in (self._kinds or {}).values()}
        return [function for kind in by_type.values() for function in rewards_of(kind, are_only)]

    def schemas(self, row: dict[str, Any]) -> list[dict]:
        """Descriptions of the tools of a row for its chat template."""
        return self._toolbox_of(row).schemas

    def check_rows(self, rows: Iterable[dict[str, Any]]) -> None:
        """Refuses rows that name an environment that does not exist.

        Raises:
            AgentError: Naming the row and its environment.
        """
        if self._several:
            for number, row in enumerate(rows):
                self._kind_of(row, f"row {number}")

    def check_prompts(self, prompts: PromptDataset) -> None:
        """Refuses prompts that are texts, to which nothing can answer.

        Raises:
            AgentError: Naming the form of a prompt.
        """
        if not prompts.conversational:
            raise AgentError(
                "The prompts are strings, but tools and environments answer in messages of a chat template. Give "
                'messages: [{"role": "user", "content": ...}].'
            )

    def empty_prompts(self, num_rows: int) -> datasets.Dataset:
        """Rows for a run without a data set, whose environments write the prompts.

        Raises:
            AgentError: If rows have to choose an environment.
        """
        if self._several:
            raise AgentError(
                "environment_factory is a dictionary, which requires a `train_dataset` whose rows choose from it in "
                f"the column {COLUMN!r}. Pass one, or a single factory."
            )
        return datasets.Dataset.from_dict({"prompt": [_EMPTY] * num_rows})

    def with_prompts(self, dataset: Any) -> Any:
        """The data set with an empty prompt in every row that has none, where environments write the prompts.

        Args:
            dataset (`datasets.Dataset`, `list[dict]` or `None`): The rows.
        """
        if self._kinds is None or dataset is None or isinstance(dataset, PromptDataset):
            return dataset
        if isinstance(dataset, datasets.Dataset):
            has = {"prompt", "conversations"}.intersection(dataset.column_names)
            return dataset if has else dataset.add_column("prompt", [_EMPTY] * len(dataset))
        return [{"prompt": _EMPTY, **row} if "conversations" not in row else row for row in dataset]

    def start(
        self, examples: Sequence[dict], num_generations: int, seed: int, num_stand_ins: int = 0
    ) -> list[Episode]:
        """Begins the episodes of a rollout, prompt-major, each with an environment of its own.

        Args:
            examples (`Sequence[dict]`): Examples of a `PromptDataset`.
            num_generations (`int`): Episodes per prompt.
            seed (`int`): From which the environments of each prompt get their `seed`, equal for all its episodes.
            num_stand_ins (`int`): How many of the last examples nobody plays; they get no environment.

        Raises:
            AgentError: If an environment cannot be reset.
        """
        seeds = np.random.SeedSequence(seed).generate_state(len(examples)).tolist()
        jobs = [pair for pair in zip(examples, seeds, strict=True) for _ in range(num_generations)]
        count = (len(examples) - num_stand_ins) * num_generations if self._kinds is not None else 0
        # Taken in order, so that which instance plays which episode does not depend on the threads
        taken = [self._kind_of(_row(example), f"row {example['index']}").take_free() for example, _ in jobs[:count]]
        with ThreadPoolExecutor(self._workers, thread_name_prefix="reset") as pool:
            begun = list(pool.map(lambda job, environment: self._begin(*job, environment), jobs[:count], taken))
        return begun + [Episode(each, self._toolbox_of(_row(each)), self._rules) for each, _ in jobs[count:]]

    def release(self, episodes: Iterable[Episode]) -> None:
        """Frees the environments of episodes that have been scored."""
        for episode in episodes:
            episode.release()

    def close(self) -> None:
        """Ends the threads of tools."""
        self._rules.runner.close()

    def rewarding(self, episodes: Iterable[Episode]) -> set[str]:
        """Names of the environments that have rewarded a turn, in these episodes or as far as is known."""
        found = {type(each.environment).__name__ for each in episodes if each.turn_rewards is not None}
        return found.union(kind.label for kind in (self._kinds or {}).values() if kind.gives_rewards)

    def expect_rewards(self, names: Collection[str]) -> None:
        """From now on, episodes of these environments without a reward count 0. Otherwise whether they count at
        all would depend on the other episodes in the batch."""
        for kind in (self._kinds or {}).values():
            kind.gives_rewards |= kind.label in names

    def expect_all_rewards(self) -> None:
        """From now on every reply without a reward counts 0, whatever the other episodes of its batch."""
        self.expect_rewards({kind.label for kind in (self._kinds or {}).values()})

    def state_dict(self) -> dict[str, Any]:
        """What is to be kept across a resume: the states of environments that have some.

        Raises:
            AgentError: If one cannot be saved.
        """
        kinds = (self._kinds or {}).items()
        states = {name: kind.states() for name, kind in kinds if kind.has_state}
        return {"states": states, "rewarding": sorted(self.rewarding(()))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on with environments in these states.

        Raises:
            AgentError: If one does not fit.
        """
        self.expect_rewards(state["rewarding"])
        for name, kind in (self._kinds or {}).items():
            if name in state["states"]:
                kind.load_states(state["states"][name])

    def _begin(self, example: dict[str, Any], seed: int, environment: Any | None) -> Episode:
        row = _row(example)
        kind = self._kind_of(row, f"row {example['index']}")
        environment = kind.make() if environment is None else environment
        given = {name: value for name, value in row.items() if not (self._several and name == COLUMN)}
        said = kind.reset(environment, {**given, "seed": seed}, f"row {example['index']}", self._rules.runner)
        return Episode(self._with_said(example, said), kind.toolbox, self._rules, kind, environment)

    def _with_said(self, example: dict[str, Any], said: str | list[dict] | None) -> dict[str, Any]:
        if not said:
            return example
        prompt, ids = self._renderer.extended(example, said)
        return {**example, "prompt": prompt, "prompt_ids": ids[-(self._max_prompt_length or len(ids)) :]}

    def _proved_template(self, tokenizer: PreTrainedTokenizerBase, eos_token_ids: tuple[int, ...]) -> TurnTemplate:
        template = TurnTemplate(tokenizer, eos_token_ids)
        template.prove(self.has_tools, self.rewards_turns, self._renderer.template_kwargs)
        return template

    def _toolboxes(self) -> list[Toolbox]:
        return [self._toolbox] if self._kinds is None else [kind.toolbox for kind in self._kinds.values()]

    def _toolbox_of(self, row: dict[str, Any]) -> Toolbox:
        return self._toolbox if self._kinds is None else self._kind_of(row, "a row").toolbox

    def _kind_of(self, row: dict[str, Any], where: str) -> EnvironmentKind:
        name = row.get(COLUMN) if self._several else None
        if name not in self._kinds:
            raise AgentError(
                f"{where} has the {COLUMN} {name!r}, which is not among the environments of environment_factory: "
                f"{', '.join(map(repr, self._kinds))}. Correct the row, or add the environment."
            )
        return self._kinds[name]


def _row(example: dict[str, Any]) -> dict[str, Any]:
    return {"prompt": example["prompt"], **example["columns"]}
