# SPDX-License-Identifier: Apache-2.0
"""Lets a model answer prompts, in one turn or in episodes, and rates what it said with the rewards of training.

Every model answers the same prompts with the same seed, so that two models can be compared prompt by prompt.
Completions of one prompt are not independent samples: they are averaged first, and the interval is taken over prompts.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..agent import Agent, Episode
from ..algorithms import total_rewards
from ..forward.introspection import eos_token_ids
from ..rewards import RewardScorer
from ..rewards.judging import judge, readable_completions
from ..rewards.rules import completion_text
from ..rewards.signals import Signals
from ..rewards.verifiable import exact_match_reward
from ..rollout import Rollout, SamplingParams, TorchEngine, check_episodes, check_rollouts
from .estimates import passes_by_prompt
from .playing import prompts_of
from .settings import EpisodeSettings, EvalSettings

EPISODE_ARGUMENTS = ("num_turns", "environments", "turn_rewards")
"""What reward functions may ask for beside the columns, where completions are episodes."""


class ExactMatch:
    """The reward `exact_match`, for a column with any name.

    Args:
        column (`str`): Name of the column.
    """

    def __init__(self, column: str = "answer"):
        self.column = column
        self.name = "exact_match"
        self.needed_columns = [(column,)]

    def __call__(self, completions: list, **columns: Any) -> list[float | None]:
        if self.column not in columns:
            raise ValueError(
                f"exact_match needs the column {self.column!r}; the columns are {sorted(columns)}. Name one of them."
            )
        return exact_match_reward(completions, columns[self.column])


@dataclass
class Answers:
    """The answers of one model and their rewards.

    Args:
        name (`str`): Name of the model.
        signals (`dict[str, list[float]]`): By the names of docs/metrics.md, one value per prompt: `reward`, the
            weighted sum, `rewards/NAME` for each signal, `pass@K`, `tokens`, `truncated`, and what is counted of
            episodes.
        completions (`list[dict]`): Prompt, completion and signals of every completion.
    """

    name: str
    signals: dict[str, list[float]]
    completions: list[dict[str, Any]]


def answer_prompts(
    name: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: datasets.Dataset,
    scorer: RewardScorer,
    settings: EvalSettings,
    on_progress: Callable[[int], None] = lambda count: None,
    agent: Agent | None = None,
    episodes: EpisodeSettings | None = None,
) -> Answers:
    """Lets a model answer every prompt, and computes the rewards of the answers.

    Args:
        name (`str`): Name of the model in the result.
        model (`PreTrainedModel`), tokenizer (`PreTrainedTokenizerBase`): The model and its tokenizer.
        rows (`datasets.Dataset`): Prompts, with the columns needed by the rewards.
        scorer ([`RewardScorer`]): The reward functions, those of environments included.
        settings ([`EvalSettings`]): Settings of the answers.
        on_progress (`Callable[[int], None]`): Called with the number of prompts done since the last call.
        agent ([`Agent`], *optional*): Tools and environments, if the answers are episodes; see `agent_for`.
        episodes ([`EpisodeSettings`], *optional*): Settings of these.

    Returns:
        [`Answers`]
    """
    prompts = prompts_of(rows, tokenizer, settings, agent)
    drawing = _Drawing(model, tokenizer, settings, agent, episodes or EpisodeSettings())
    signals: list[torch.Tensor] = []
    completions: list[dict[str, Any]] = []
    for start in range(0, len(prompts), settings.batch_size):
        batch = [prompts[number] for number in range(start, min(start + settings.batch_size, len(prompts)))]
        drawn = drawing(batch, settings.seed + start)
        judged = drawn.judged(scorer)
        signals.append(judged.values)
        completions += drawn.records(scorer, judged)
        if agent is not None:
            agent.release(drawn.episodes)
        on_progress(len(batch))
    measured = _by_prompt(torch.cat(signals), scorer, completions, settings)
    if agent is not None:
        measured |= _of_episodes(completions, settings.samples, agent.has_tools)
    return Answers(name, measured, completions)


@dataclass
class _Drawn:
    """N completions: the prompt of each, what was drawn, and how it reads."""

    prompts: list[dict]
    rollouts: list[Rollout]
    completions: list
    episodes: list[Episode] | None

    @property
    def num_turns(self) -> list[int]:
        return [len(rollout.turns) for rollout in self.rollouts]

    def judged(self, scorer: RewardScorer) -> Signals:
        further = {}
        if self.episodes is not None:
            environments = [episode.environment for episode in self.episodes]
            turn_rewards = [episode.turn_rewards for episode in self.episodes]
            further = dict(zip(EPISODE_ARGUMENTS, (self.num_turns, environments, turn_rewards), strict=True))
        ids = [_own_ids(rollout) for rollout in self.rollouts]
        return judge(scorer, self.prompts, self.completions, ids, **further)

    def records(self, scorer: RewardScorer, judged: Signals) -> list[dict[str, Any]]:
        turn_rewards = judged.turn_totals(scorer.weights.tolist(), self.num_turns) if judged.by_turn else None
        return [self._record(number, scorer, judged, turn_rewards) for number in range(len(self.rollouts))]

    def _record(
        self, number: int, scorer: RewardScorer, judged: Signals, turn_rewards: list[list[float]] | None
    ) -> dict[str, Any]:
        prompt, rollout, completion = self.prompts[number], self.rollouts[number], self.completions[number]
        record = {
            "index": prompt["index"],
            "prompt": prompt["prompt"],
            "completion": completion_text(completion) if self.episodes is None else completion,
            "tokens": len(_own_ids(rollout)),
            "finish_reason": rollout.finish_reason,
            "signals": dict(zip(scorer.names, map(_readable, judged.values[number].tolist()), strict=True)),
        }
        if self.episodes is not None:
            record |= self.episodes[number].counts
        if turn_rewards is not None:
            record["turn_rewards"] = [_readable(reward) for reward in turn_rewards[number]]
        return record


class _Drawing:
    """Draws the completions of a model, batch by batch."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        settings: EvalSettings,
        agent: Agent | None,
        episodes: EpisodeSettings,
    ):
        self._tokenizer, self._settings, self._agent, self._episodes = tokenizer, settings, agent, episodes
        self._engine = TorchEngine()
        self._engine.sync_weights(model, version=0)
        self._engine.tool_workers = episodes.tool_workers
        if agent is not None:
            self._engine.check_sessions(model)
        self._ends = eos_token_ids(model, tokenizer)
        self._embedded = model.get_input_embeddings().num_embeddings

    def __call__(self, batch: list[dict], seed: int) -> _Drawn:
        settings, engine = self._settings, self._engine
        sampling = SamplingParams(
            settings.max_completion_length,
            settings.temperature or 1.0,
            self._ends,
            seed=seed,
            greedy=settings.temperature == 0,
            max_turn_length=self._episodes.max_turn_length,
        )
        if self._agent is not None:
            return self._played(self._agent.start(batch, settings.samples, seed), sampling)
        rollouts = engine.generate([prompt["prompt_ids"] for prompt in batch], settings.samples, sampling)
        check_rollouts(rollouts, len(batch) * settings.samples, self._embedded, engine)
        ids = [rollout.completion_ids for rollout in rollouts]
        readable = readable_completions(batch, ids, self._tokenizer, self._ends)
        return _Drawn([prompt for prompt in batch for _ in range(settings.samples)], rollouts, readable, None)

    def _played(self, episodes: list[Episode], sampling: SamplingParams) -> _Drawn:
        rollouts = self._engine.converse(episodes, sampling)
        check_episodes(rollouts, len(episodes), self._embedded, self._engine, sampling)
        prompts = [episode.prompt for episode in episodes]
        return _Drawn(prompts, rollouts, [episode.messages for episode in episodes], episodes)


def _own_ids(rollout: Rollout) -> list[int]:
    """The tokens that the model drew."""
    return [token for start, end in rollout.turns for token in rollout.completion_ids[start:end]]


def _readable(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)


def _by_prompt(
    signals: torch.Tensor, scorer: RewardScorer, completions: list[dict], settings: EvalSettings
) -> dict[str, list[float]]:
    """Means over the completions of each prompt; NaN if a signal applies to none of them. Records get `reward`."""
    samples = settings.samples
    per_prompt = signals.double().view(-1, samples, signals.shape[1])
    totals = total_rewards(signals.double(), scorer.weights.double(), samples)
    for record, total in zip(completions, totals.tolist(), strict=True):
        record["reward"] = _readable(total)
    rewards = totals.view(-1, samples)
    measured = {"reward": rewards.nanmean(dim=1).tolist()}
    for i, name in enumerate(scorer.names):
        measured[f"rewards/{name}"] = per_prompt[:, :, i].nanmean(dim=1).tolist()
    for k in dict.fromkeys(settings.pass_at):
        measured[f"pass@{k}"] = passes_by_prompt(rewards, settings.solved_at, k)
    measured["tokens"] = _means([row["tokens"] for row in completions], samples)
    measured["truncated"] = _means([row["finish_reason"] == "length" for row in completions], samples)
    return measured


def _of_episodes(completions: list[dict], samples: int, has_tools: bool) -> dict[str, list[float]]:
    """What is counted of episodes, by the names of training."""
    measured = {
        "episodes/turns": _means([row["turns"] for row in completions], samples),
        "episodes/reached_max_turns": _means([row["reached_max_turns"] for row in completions], samples),
    }
    if has_tools:
        calls = _means([row["calls"] for row in completions], samples)
        failed = _means([sum(row["failed_calls"].values()) for row in completions], samples)
        pairs = zip(failed, calls, strict=True)
        measured["tools/call_frequency"] = calls
        measured["tools/failure_frequency"] = [wrong / made if made else math.nan for wrong, made in pairs]
    return measured


def _means(values: Sequence[float], samples: int) -> list[float]:
    return torch.tensor(values, dtype=torch.float64).view(-1, samples).mean(dim=1).tolist()
