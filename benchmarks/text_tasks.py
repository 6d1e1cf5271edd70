# SPDX-License-Identifier: Apache-2.0
"""What the text tasks of `learning.py` share: prompts and completions that are texts, and a model that has seen a few.

Every character is a token, so that a model of less than a million parameters can take words apart. Phrases that all
prompts or answers of a task share are one token each.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from minimind_hf import SamplingParams, TorchEngine
from minimind_hf.rewards.judging import readable_texts

sys.path.insert(0, str(Path(__file__).parents[1] / "recipes"))
from embedded_model import TEMPERATURE, as_pretrained, make_model, show_examples, train_tokenizer  # noqa: E402

Rows = list[dict[str, Any]]
MOST_STEPS = 1500  # of the supervised start, which ends when it knows enough


@dataclass(frozen=True)
class TextTask:
    """A task whose prompts are texts.

    Args:
        train (`list[dict]`), held_out (`list[dict]`): `prompt`, and the columns of the rewards.
        worked (`list[tuple[str, str]]`): Prompts with completions, for the supervised start.
        rewards (`list[Callable]`): Those that are trained on and, after the first, those that are only logged.
        phrases (`Sequence[str]`): What is one token.
        enough (`float`): Mean of the first reward at which the supervised start ends.
        settings (`dict`): Settings of the trainers that differ from those of other tasks.
    """

    train: Rows
    held_out: Rows
    worked: list[tuple[str, str]]
    rewards: list[Callable]
    phrases: Sequence[str]
    enough: float
    settings: dict[str, Any] = field(default_factory=dict)


def make_tokenizer(phrases: Sequence[str]) -> PreTrainedTokenizerFast:
    """Characters and phrases as tokens, and MiniMind's special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    train_tokenizer(tokenizer, [])
    tokenizer.add_tokens([AddedToken(phrase, normalized=False, special=False) for phrase in phrases])
    return as_pretrained(tokenizer, chat_template="")


def make_start(task: TextTask, folder: Path, seed: int) -> None:
    """Builds a model, shows it worked examples until it knows enough, and saves it."""
    tokenizer = make_tokenizer(task.phrases)
    model = make_model(tokenizer, seed)
    examples = [_example(tokenizer, *each) for each in task.worked]

    def knows_enough(step: int) -> bool:
        reward = measure(task, model, tokenizer, task.train[:256])
        print(f"supervised step {step}: mean reward {reward:.3f}", flush=True)
        return reward >= task.enough

    show_examples(model, tokenizer, examples, MOST_STEPS, seed, knows_enough, look_every=20)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _example(tokenizer: PreTrainedTokenizerBase, prompt: str, completion: str) -> dict[str, list[int]]:
    given, learned = (tokenizer(text)["input_ids"] for text in (prompt, completion + tokenizer.eos_token))
    return {"input_ids": given + learned, "labels": [-100] * len(given) + learned}


def measure(task: TextTask, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: Rows) -> float:
    """The mean of the first reward, over a completion for each row."""
    texts = sample(model, tokenizer, [row["prompt"] for row in rows], task.settings["max_completion_length"])
    columns = {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
    return fmean(task.rewards[0](completions=texts, **columns))


def sample(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], max_length: int
) -> list[str]:
    """A completion for each prompt; the same model gives the same ones."""
    engine = TorchEngine()
    engine.sync_weights(model, version=0)
    sampling = SamplingParams(max_length, TEMPERATURE, (tokenizer.eos_token_id,), seed=0)
    rollouts = engine.generate(tokenizer(list(prompts))["input_ids"], 1, sampling)
    return readable_texts([rollout.completion_ids for rollout in rollouts], tokenizer)
