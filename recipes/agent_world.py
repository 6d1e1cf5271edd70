# SPDX-License-Identifier: Apache-2.0
"""What the embedded tasks of recipes/agent.py share: a tokenizer, a model, worked episodes, and episodes played.

Everything is made on the spot. A supervised phase shows worked episodes until the model plays as they do, which is
rarely well: they show what can be done, and the choice is left to reinforcement learning. Digits are tokens, and so
are whole stretches of JSON.

Run as a script, this file loads a folder in a fresh process and plays the held-out rows of a task with it:

    python recipes/agent_world.py calculator FOLDER
"""

import argparse
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from embedded_model import (
    SPECIAL_TOKENS,
    TEMPERATURE,
    as_pretrained,
    make_model,
    run_in_fresh_process,
    show_examples,
    train_tokenizer,
)
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from minimind_hf import PromptDataset, SamplingParams, TorchEngine
from minimind_hf.agent import Agent, Episode
from minimind_hf.data.supervised import ConversationRenderer, encode_conversation
from minimind_hf.language import said

SAMPLES_PER_ROW = 2

TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
# Calls and answers in MiniMind's form. Of a tool's description, its name and its parameters are enough here.
CHAT_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system' }}
    {%- for tool in tools %}
        {{- '\\n' + tool.function.name + '(' + tool.function.parameters.properties.keys() | join(', ') + ')' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>' + message.content + '</tool_response><|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson + '}</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


class AgentTask(ABC):
    """A task of several turns.

    Attributes:
        name (`str`): As in `--task`.
        tools (`list[Callable]`), environment_factory (`Callable`, *optional*): What the trainer gets.
        rewards (`list[Callable]`): Its reward functions.
        settings (`dict`): Lengths: `max_turns`, `max_turn_length`, `max_completion_length`.
        defaults (`dict`): What the trainer's settings are by default, for `grpo` and for `ppo`.
        train, held_out (`list[dict]`): Rows. None of the latter is among the former.
        worked_per_row (`int`): Worked episodes that are made of each row to train on.
        measures (`tuple[str, ...]`): What is reported of it, see [`measure`].
    """

    name: str
    tools: Sequence[Callable] = ()
    environment_factory: Callable | None = None
    rewards: Sequence[Callable] = ()
    worked_per_row: int = 1
    measures: tuple[str, ...] = ("accuracy",)
    settings: dict[str, int]
    defaults: dict[str, dict[str, Any]]
    train: list[dict[str, Any]]
    held_out: list[dict[str, Any]]

    @abstractmethod
    def worked(self, row: dict[str, Any], rng: random.Random) -> list[dict[str, Any]]:
        """The messages of an episode to learn from, after the prompt."""

    @abstractmethod
    def is_learned(self, row: dict[str, Any], messages: list[dict[str, Any]]) -> bool:
        """Whether an episode is played as the worked ones are."""

    @abstractmethod
    def is_solved(self, row: dict[str, Any], messages: list[dict[str, Any]]) -> bool:
        """Whether the messages of an episode solve the row."""

    @abstractmethod
    def opening(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """The messages of a row's prompt, with what the environment adds to them."""

    def agent(self, tokenizer: PreTrainedTokenizerBase) -> Agent:
        """The tools and environments, as a trainer makes them."""
        return Agent(
            list(self.tools),
            self.environment_factory,
            tokenizer,
            (tokenizer.eos_token_id,),
            max_turns=self.settings["max_turns"],
            max_observation_length=64,
            tool_timeout=10.0,
            tool_workers=2,
        )


def make_tokenizer(task: AgentTask) -> PreTrainedTokenizerFast:
    """Trains a byte-level BPE on worked episodes: digits are tokens, what stands between them is merged."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("\n", "isolated"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tags = [AddedToken(tag, normalized=False, special=False) for tag in TAGS]
    untrained = _wrapped(Tokenizer.from_str(tokenizer.to_str()), tags)
    rng = random.Random(0)
    agent = task.agent(untrained)
    texts = [
        untrained.apply_chat_template(
            [*task.opening(row), *task.worked(row, rng)], tools=agent.schemas(row) or None, tokenize=False
        )
        for row in task.train[:200]
    ]
    agent.close()
    for mark in (*SPECIAL_TOKENS, *TAGS):
        texts = [text.replace(mark, "\n") for text in texts]
    train_tokenizer(tokenizer, texts)
    return _wrapped(tokenizer, tags)


def _wrapped(tokenizer: Tokenizer, tags: list[AddedToken]) -> PreTrainedTokenizerFast:
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens(tags)
    return as_pretrained(tokenizer, CHAT_TEMPLATE)


def teach(
    task: AgentTask,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    max_steps: int,
    enough: float,
    seed: int,
) -> None:
    """Shows worked episodes until a share `enough` of the played ones goes as they do, or for `max_steps`.

    Args:
        task ([`AgentTask`]): What to learn.
        model (`PreTrainedModel`): Trained in place.
        tokenizer (`PreTrainedTokenizerBase`): Its tokenizer.
        max_steps (`int`): Updates, of 32 episodes each, at most.
        enough (`float`): Share of such episodes at which to stop.
        seed (`int`): Seed of the episodes and their order.
    """
    rng = random.Random(seed)
    rows = rng.sample(task.train, len(task.train)) * task.worked_per_row
    examples = list(_examples(task, tokenizer, rows, rng))

    def knows_enough(step: int) -> bool:
        return _knows_enough(task, model, tokenizer, rows[:128], enough, step)

    show_examples(model, tokenizer, examples, max_steps, seed, knows_enough, look_every=20)


def _knows_enough(
    task: AgentTask, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list, enough: float, step: int
) -> bool:
    played = zip(rows, play(task, model, tokenizer, rows, samples=1), strict=True)
    share = fmean(task.is_learned(row, episode.messages) for row, episode in played)
    if step % 60 == 0 or share >= enough:
        text = "supervised step {step}: {share:.0%} of the episodes go as the worked ones"
        print(said(text, step=step, share=share), flush=True)
    return share >= enough


def _examples(
    task: AgentTask, tokenizer: PreTrainedTokenizerBase, rows: Iterable[dict], rng: random.Random
) -> Iterable[dict[str, list[int]]]:
    """Worked episodes as token ids, in which the turns of the policy are learned."""
    renderer, agent = ConversationRenderer(tokenizer), task.agent(tokenizer)
    for number, row in enumerate(rows):
        messages = [*task.opening(row), *task.worked(row, rng)]
        schemas = agent.schemas(row) or None
        yield encode_conversation({"messages": messages, "tools": schemas}, number, renderer, "messages")
    agent.close()


def play(
    task: AgentTask, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[dict], samples: int
) -> list[Episode]:
    """Plays episodes, `samples` of each row in turn; the same model plays the same ones."""
    agent, engine = task.agent(tokenizer), TorchEngine()
    prompts = PromptDataset([{**row, "tools": agent.schemas(row)} for row in rows], tokenizer)
    engine.sync_weights(model, version=0)
    sampling = SamplingParams(
        task.settings["max_completion_length"],
        TEMPERATURE,
        (tokenizer.eos_token_id,),
        seed=0,
        max_turn_length=task.settings["max_turn_length"],
    )
    episodes = agent.start([prompts[i] for i in range(len(rows))], samples, seed=0)
    engine.converse(episodes, sampling)
    agent.release(episodes)
    agent.close()
    engine.close()
    return episodes


def measure(
    task: AgentTask,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[dict],
    samples: int = SAMPLES_PER_ROW,
) -> dict[str, float]:
    """Returns what the task reports: the share of solved episodes (`accuracy`), the mean number of turns (`turns`)."""
    episodes = play(task, model, tokenizer, rows, samples)
    solved = [task.is_solved(rows[i // samples], episode.messages) for i, episode in enumerate(episodes)]
    measured = {"accuracy": fmean(solved), "turns": fmean(episode.num_turns for episode in episodes)}
    return {name: measured[name] for name in task.measures}


def make_start(
    task: AgentTask, folder: Path, max_steps: int, enough: float, seed: int, device: str | torch.device
) -> dict[str, float]:
    """Builds a tokenizer and a model, teaches the model a little, and saves both.

    Returns:
        `dict[str, float]`: As [`measure`], on the held-out rows.
    """
    tokenizer = make_tokenizer(task)
    model = make_model(tokenizer, seed).to(device)
    teach(task, model, tokenizer, max_steps, enough, seed)
    measured = measure(task, model, tokenizer, task.held_out)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return measured


def measure_in_fresh_process(task: AgentTask, folder: str | Path, device: str | torch.device) -> dict[str, float]:
    """Loads a folder with the Auto classes in a fresh process, prints an episode, and returns what was measured.

    Raises:
        RuntimeError: If the process fails, with the end of its output.
    """
    return json.loads(run_in_fresh_process(__file__, task.name, str(folder), "--device", str(device), folder=folder))


def main() -> None:
    from agent_tasks import TASKS  # it imports this module

    parser = argparse.ArgumentParser(description="Plays the held-out rows of a task with a model folder.")
    parser.add_argument("task", choices=sorted(TASKS))
    parser.add_argument("folder")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    task = TASKS[options.task]()
    tokenizer = AutoTokenizer.from_pretrained(options.folder)
    model = AutoModelForCausalLM.from_pretrained(options.folder).to(options.device)
    shown = task.held_out[:2]
    for row, episode in zip(shown, play(task, model, tokenizer, shown, samples=1), strict=True):
        print(as_line([*task.opening(row), *episode.messages]))
    print(json.dumps(measure(task, model, tokenizer, task.held_out)))


def as_line(messages: list[dict[str, Any]]) -> str:
    """An episode in one line."""
    calls = [
        [f"{call['function']['name']}{call['function']['arguments']}" for call in message.get("tool_calls", [])]
        for message in messages
    ]
    parts = (" ".join([m["content"], *called]).strip() for m, called in zip(messages, calls, strict=True))
    return " | ".join(" ".join(part.split()) for part in parts)


if __name__ == "__main__":
    main()
