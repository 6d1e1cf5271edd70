# SPDX-License-Identifier: Apache-2.0
"""Evaluates models on held-out prompts: the rewards of training, or exact matches, with confidence intervals.

Every model answers the same prompts with the same seed, so that two models can be compared prompt by prompt.
Completions of one prompt are not independent samples: they are averaged first, and the interval is taken over prompts.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist, fmean, stdev
from typing import Annotated, Any

import datasets
import torch
from rich.table import Table
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .algorithms import total_rewards
from .bounds import Bounds, Count, Share, check_settings
from .data import PromptDataset
from .data.prompts import say_how_many_think
from .data.tokenizers import say_plain_prompts
from .flags import flag
from .forward.introspection import eos_token_ids
from .reports.record import read_settings
from .rewards import RewardScorer
from .rewards.judging import judge, readable_completions
from .rewards.rules import completion_text
from .rewards.verifiable import exact_match_reward
from .rollout import SamplingParams, TorchEngine, check_rollouts

CONFIDENCE = 0.95
_THINKING_RATIO = 0.9


@dataclass(frozen=True)
class EvalSettings:
    """Settings of the answers; each one is a flag of `minimind-hf eval`.

    Args:
        samples (`int`): Completions per prompt.
        temperature (`float`): Sampling temperature; 0 takes the most likely token.
        max_completion_length (`int`): Maximum tokens per completion.
        thinking_ratio (`float`): Share of the prompts that open a thought.
        seed (`int`): Seed of the sampling and of the choice of thinking prompts.
        batch_size (`int`): Prompts decoded at a time.
    """

    samples: Count = flag(1, "completions per prompt (default %(default)s)", metavar="N")
    temperature: Annotated[float, Bounds(at_least=0, remedy="0 always takes the most likely token.")] = flag(
        0.8, "0: always the most likely token (default %(default)s)", metavar="T"
    )
    max_completion_length: Count = flag(256, "maximum tokens per completion (default %(default)s)", metavar="N")
    thinking_ratio: Share = flag(
        _THINKING_RATIO,
        "share of the prompts that think (default: as in training, from the run.json of the models; else "
        f"{_THINKING_RATIO})",
        metavar="P",
    )
    seed: int = flag(0, "sampling seed (default %(default)s)", metavar="N")
    batch_size: Count = flag(64, "prompts decoded at a time (default %(default)s)", metavar="N")

    def __post_init__(self):
        check_settings(self)


def thinking_ratio_of(models: Sequence[str]) -> float:
    """Returns the share of thinking prompts in the training of the models, from the `run.json` of their runs.

    Args:
        models (`Sequence[str]`): Folders (of a run, or inside it) or names; models without a run are ignored.

    Returns:
        `float`: One share, since all models answer the same prompts; the default if no run is found.

    Raises:
        ValueError: If the runs differ.
    """
    found = {model: ratio for model in models if (ratio := _trained_ratio(Path(model))) is not None}
    if len(set(found.values())) > 1:
        told = ", ".join(f"{model} {ratio:g}" for model, ratio in found.items())
        raise ValueError(
            f"The models were trained with different shares of thinking prompts ({told}), but must be compared on the "
            "same prompts. Choose the share with --thinking_ratio P."
        )
    return next(iter(found.values()), EvalSettings.thinking_ratio)


def _trained_ratio(model: Path) -> float | None:
    """Reads the share from the run whose folder is the model or its parent (for checkpoints)."""
    folders = (model, model.resolve().parent) if model.is_dir() else ()
    ratios = (read_settings(folder).get("thinking_ratio") for folder in folders)
    return next((ratio for ratio in ratios if ratio is not None), None)


@dataclass(frozen=True)
class Estimate:
    """A mean over prompts with its confidence interval.

    Args:
        mean (`float`): The mean.
        low (`float`), high (`float`): Bounds of the interval.
        prompts (`int`): Number of prompts in the mean: those to which the signal applies.
    """

    mean: float
    low: float
    high: float
    prompts: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {(self.high - self.low) / 2:.3f}"


def estimate(values: Sequence[float]) -> Estimate | None:
    """Returns the mean of independent values with a 95 % interval, by the normal approximation.

    Args:
        values (`Sequence[float]`): One value per prompt; NaN is skipped.

    Returns:
        [`Estimate`], or `None` if there is no value. For a single value, the interval is unbounded.
    """
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return None
    mean, count = fmean(known), len(known)
    half = math.inf
    if count > 1:
        half = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) * stdev(known) / math.sqrt(count)
    return Estimate(mean, mean - half, mean + half, count)


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
        signals (`dict[str, list[float]]`): `reward`, the weighted sum, `rewards/NAME` for each signal, `tokens`
            and `truncated`; each has one mean per prompt.
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
) -> Answers:
    """Lets a model answer every prompt, and computes the rewards of the answers.

    Args:
        name (`str`): Name of the model in the result.
        model (`PreTrainedModel`), tokenizer (`PreTrainedTokenizerBase`): The model and its tokenizer.
        rows (`datasets.Dataset`): Prompts, with the columns needed by the rewards.
        scorer ([`RewardScorer`]): The reward functions.
        settings ([`EvalSettings`]): Settings of the answers.
        on_progress (`Callable[[int], None]`): Called with the number of prompts done since the last call.

    Returns:
        [`Answers`]
    """
    prompts = PromptDataset(rows, tokenizer, thinking_ratio=settings.thinking_ratio, seed=settings.seed)
    say_how_many_think(prompts, settings.thinking_ratio)
    say_plain_prompts(tokenizer, prompts.conversational)
    engine = TorchEngine()
    engine.sync_weights(model, version=0)
    ends = eos_token_ids(model, tokenizer)
    signals: list[torch.Tensor] = []
    completions: list[dict[str, Any]] = []
    for start in range(0, len(prompts), settings.batch_size):
        batch = [prompts[number] for number in range(start, min(start + settings.batch_size, len(prompts)))]
        sampling = SamplingParams(
            settings.max_completion_length,
            settings.temperature or 1.0,
            ends,
            seed=settings.seed + start,
            greedy=settings.temperature == 0,
        )
        rollouts = engine.generate([prompt["prompt_ids"] for prompt in batch], settings.samples, sampling)
        check_rollouts(rollouts, len(batch) * settings.samples, model.get_input_embeddings().num_embeddings, engine)
        batch_signals, records = _judge_batch(batch, rollouts, tokenizer, scorer, settings.samples, ends)
        signals.append(batch_signals)
        completions += records
        on_progress(len(batch))
    return Answers(name, _by_prompt(torch.cat(signals), scorer, completions, settings.samples), completions)


def _judge_batch(
    batch: list[dict],
    rollouts: list,
    tokenizer: PreTrainedTokenizerBase,
    scorer: RewardScorer,
    samples: int,
    ends: Sequence[int],
) -> tuple[torch.Tensor, list[dict[str, Any]]]:
    ids = [rollout.completion_ids for rollout in rollouts]
    completions = readable_completions(batch, ids, tokenizer, ends)
    signals = judge(scorer, batch, completions, ids).values
    repeated = [prompt for prompt in batch for _ in range(samples)]
    records = [
        {
            "index": prompt["index"],
            "prompt": prompt["prompt"],
            "completion": completion_text(completion),
            "tokens": len(rollout.completion_ids),
            "finish_reason": rollout.finish_reason,
            "signals": {
                name: None if math.isnan(value) else round(value, 6)
                for name, value in zip(scorer.names, row.tolist(), strict=True)
            },
        }
        for prompt, completion, rollout, row in zip(repeated, completions, rollouts, signals, strict=True)
    ]
    return signals, records


def _by_prompt(
    signals: torch.Tensor, scorer: RewardScorer, completions: list[dict], samples: int
) -> dict[str, list[float]]:
    """Means over the completions of each prompt; NaN if a signal applies to none of them."""
    per_prompt = signals.double().view(-1, samples, signals.shape[1])
    reward = total_rewards(signals.double(), scorer.weights.double(), samples).view(-1, samples).nanmean(dim=1)
    measured = {"reward": reward.tolist()}
    for i, name in enumerate(scorer.names):
        measured[f"rewards/{name}"] = per_prompt[:, :, i].nanmean(dim=1).tolist()
    lengths = torch.tensor([row["tokens"] for row in completions], dtype=torch.float64)
    cut = torch.tensor([row["finish_reason"] == "length" for row in completions], dtype=torch.float64)
    measured["tokens"] = lengths.view(-1, samples).mean(dim=1).tolist()
    measured["truncated"] = cut.view(-1, samples).mean(dim=1).tolist()
    return measured


def summary(answers: Sequence[Answers]) -> list[dict[str, Any]]:
    """Returns the estimates of every signal for each model, and of the differences from the first model.

    Differences are taken prompt by prompt, which removes the difficulty of the prompts. So a difference can be clear
    even if the intervals of the models overlap.
    """
    rows = []
    for name in answers[0].signals:
        row: dict[str, Any] = {"signal": name}
        first = answers[0].signals[name]
        row["models"] = {one.name: _as_dict(estimate(one.signals[name])) for one in answers}
        row["differences"] = {
            one.name: _as_dict(estimate([b - a for a, b in zip(first, one.signals[name], strict=True)]))
            for one in answers[1:]
        }
        rows.append(row)
    return rows


def _as_dict(value: Estimate | None) -> dict[str, float] | None:
    if value is None:
        return None
    return {name: round(number, 6) if math.isfinite(number) else None for name, number in asdict(value).items()}


def as_table(answers: Sequence[Answers], title: str) -> Table:
    """Returns the estimates as a table, a row per signal and model: `mean ± half the interval`, and the difference."""
    first = answers[0]
    caption = "mean ± 95 % confidence"
    table = Table(title=title)
    table.add_column("signal", no_wrap=True)
    table.add_column("model", overflow="fold")
    table.add_column("mean", justify="right", no_wrap=True)
    if len(answers) > 1:
        table.add_column("difference", justify="right", no_wrap=True)
        caption += f"; differences from {first.name} are taken prompt by prompt"
    table.caption = caption
    for name, start in first.signals.items():
        for one in answers:
            cells = [name if one is first else "", one.name, str(estimate(one.signals[name]) or "-")]
            change = None if one is first else estimate([b - a for a, b in zip(start, one.signals[name], strict=True)])
            if len(answers) > 1:
                cells.append(f"{change.mean:+.3f} ± {(change.high - change.low) / 2:.3f}" if change else "")
            table.add_row(*cells, end_section=one is answers[-1])
    return table
