# SPDX-License-Identifier: Apache-2.0
"""The task that the recipes run without a model and data: a small MiniMind learns to add.

Everything is built on the spot: the tokenizer, the model and the sums. A supervised phase shows worked examples, with
their steps inside <think>, and ends when about half of the sampled answers are right. The rest is left to
reinforcement learning, whose rewards say which steps and answers are right, not what they should be. The held-out sums
occur in neither phase, nor do the same two numbers in the other order.

Run as a script, this file loads a folder in a fresh process and measures it on the held-out sums:

    python recipes/embedded_task.py FOLDER
"""

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, takewhile
from pathlib import Path

import datasets
import torch
from embedded_model import TEMPERATURE, as_pretrained, make_model, run_in_fresh_process, show_examples, train_tokenizer
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from minimind_hf import PromptDataset, SamplingParams, TorchEngine
from minimind_hf.language import said
from minimind_hf.rewards.judging import readable_texts

QUESTION = "27 + 35 = ?"  # to try the result with
MAX_COMPLETION_LENGTH = 36  # a worked solution takes at most 28 tokens
NUM_HELD_OUT = 512
SAMPLES_PER_SUM = 2  # with 512 sums, an accuracy's standard error is below 2 points

CHAT_TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n<think>\\n' }}
    {%- if not open_thinking %}
        {{- '\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""


@dataclass(frozen=True)
class Sum:
    """One problem: two numbers of two digits."""

    a: int
    b: int

    @property
    def answer(self) -> str:
        return str(self.a + self.b)

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"{self.a} + {self.b} = ?"}]

    @property
    def steps(self) -> list[str]:
        """The columns from the right. A carry is added in a separate step, so all steps use the same table."""
        (tens_a, ones_a), (tens_b, ones_b) = divmod(self.a, 10), divmod(self.b, 10)
        ones, tens = ones_a + ones_b, tens_a + tens_b
        carry = [f"{tens}+1={tens + 1}"] if ones >= 10 else []
        return [f"{ones_a}+{ones_b}={ones}", f"{tens_a}+{tens_b}={tens}", *carry]

    @property
    def solution(self) -> str:
        """The text that follows the opened <think>."""
        return "\n".join([*self.steps, "</think>", "", self.answer])


def split_sums() -> tuple[list[Sum], list[Sum]]:
    """Returns the sums to train on and the held-out ones, the same in every run. `a + b` and `b + a` stay together."""
    pairs = list(combinations_with_replacement(range(10, 100), 2))
    random.Random(0).shuffle(pairs)
    held_out = [Sum(*pair) for pair in pairs[:NUM_HELD_OUT]]
    train = [Sum(*numbers) for a, b in pairs[NUM_HELD_OUT:] for numbers in sorted({(a, b), (b, a)})]
    return train, held_out


def as_dataset(sums: Sequence[Sum]) -> datasets.Dataset:
    """Returns prompts with the columns `answer` and `steps`, which travel to the rewards."""
    return datasets.Dataset.from_list(
        [{"prompt": item.messages, "answer": item.answer, "steps": item.steps} for item in sums]
    )


def is_correct(text: str, answer: str) -> bool:
    """Whether a completion closes its thinking once and then gives the answer and nothing else."""
    _, *rest = text.split("</think>")
    return len(rest) == 1 and rest[0].strip() == answer


def correct_answer(completions: list, answer: list[str], **columns) -> list[float]:
    """1 for the right answer after the thinking, else 0."""
    texts = [completion[0]["content"] for completion in completions]
    return [float(is_correct(*pair)) for pair in zip(texts, answer, strict=True)]


def correct_steps(completions: list, steps: list[list[str]], **columns) -> list[float]:
    """A point for every step of the thinking up to the first wrong one. Sums with a carry are worth one more."""
    thoughts = [completion[0]["content"].split("</think>")[0].split() for completion in completions]
    return [float(_equal_at_start(*pair)) for pair in zip(thoughts, steps, strict=True)]


def _equal_at_start(found: list[str], expected: list[str]) -> int:
    pairs = zip(found, expected, strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


REWARDS = [correct_answer, correct_steps]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Trains a byte-level BPE with MiniMind's special tokens, in which every digit is a separate token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    train, _ = split_sums()
    words = [f"system\nuser\nassistant\n{item.messages[0]['content']}\n\n" for item in train[:100]]
    train_tokenizer(tokenizer, words)
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in ("<think>", "</think>")])
    return as_pretrained(tokenizer, CHAT_TEMPLATE)


def teach(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_steps: int, enough: float, seed: int
) -> None:
    """Shows worked examples until a share `enough` of sampled answers is right, or for `max_steps`.

    Args:
        model (`PreTrainedModel`): Trained in place.
        tokenizer (`PreTrainedTokenizerBase`): Its tokenizer.
        max_steps (`int`): Updates, of 32 examples each, at most.
        enough (`float`): Share of right answers, on training sums, at which to stop.
        seed (`int`): Seed of the order of the examples.
    """
    train, _ = split_sums()
    random.Random(seed).shuffle(train)
    examples = [_example(tokenizer, item) for item in train]

    def knows_enough(step: int) -> bool:
        return _knows_enough(model, tokenizer, train[:192], enough, step)

    show_examples(model, tokenizer, examples, max_steps, seed, knows_enough, look_every=5)


def _knows_enough(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sums: Sequence[Sum], enough: float, step: int
) -> bool:
    accuracy = measure(model, tokenizer, sums, samples_per_sum=1)
    if step % 20 == 0 or accuracy >= enough:
        text = "supervised step {step}: {share:.0%} of sampled answers are right"
        print(said(text, step=step, share=accuracy), flush=True)
    return accuracy >= enough


def _example(tokenizer: PreTrainedTokenizerBase, item: Sum) -> dict[str, list[int]]:
    opened = tokenizer.apply_chat_template(
        item.messages, add_generation_prompt=True, open_thinking=True, tokenize=False
    )
    prompt = tokenizer(opened, add_special_tokens=False)["input_ids"]
    solution = tokenizer(item.solution + tokenizer.eos_token, add_special_tokens=False)["input_ids"]
    return {"input_ids": prompt + solution, "labels": [-100] * len(prompt) + solution}


def sample(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sums: Sequence[Sum], samples_per_sum: int
) -> list[str]:
    """Returns completions, `samples_per_sum` for each sum in turn; the same model gives the same completions."""
    prompts = PromptDataset(as_dataset(sums), tokenizer, thinking_ratio=1.0)
    engine = TorchEngine()
    engine.sync_weights(model, version=0)
    sampling = SamplingParams(MAX_COMPLETION_LENGTH, TEMPERATURE, (tokenizer.eos_token_id,), seed=0)
    rollouts = engine.generate([prompt["prompt_ids"] for prompt in prompts], samples_per_sum, sampling)
    return readable_texts([rollout.completion_ids for rollout in rollouts], tokenizer)


def measure(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sums: Sequence[Sum],
    samples_per_sum: int = SAMPLES_PER_SUM,
) -> float:
    """Returns the share of sampled completions with the right answer."""
    texts = sample(model, tokenizer, sums, samples_per_sum)
    answers = [item.answer for item in sums for _ in range(samples_per_sum)]
    return sum(map(is_correct, texts, answers)) / len(texts)


def make_start(folder: Path, max_steps: int, enough: float, seed: int, device: str | torch.device) -> float:
    """Builds a tokenizer and a model, teaches the model halfway, and saves both.

    Args:
        folder (`Path`): Where they are saved.
        max_steps (`int`), enough (`float`), seed (`int`): As for [`teach`].
        device (`str` or `torch.device`): Where the model is trained.

    Returns:
        `float`: Accuracy on the held-out sums.
    """
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, seed).to(device)
    teach(model, tokenizer, max_steps, enough, seed)
    _, held_out = split_sums()
    accuracy = measure(model, tokenizer, held_out)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return accuracy


def measure_in_fresh_process(folder: str | Path, device: str | torch.device) -> float:
    """Loads a folder with the Auto classes in a fresh process, prints some answers, and returns the accuracy.

    Raises:
        RuntimeError: If the process fails, with the end of its output.
    """
    result = run_in_fresh_process(__file__, str(folder), "--device", str(device), folder=folder)
    return json.loads(result)["accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures a model folder on the held-out sums.")
    parser.add_argument("folder")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.folder)
    model = AutoModelForCausalLM.from_pretrained(options.folder).to(options.device)
    _, held_out = split_sums()
    for item, text in zip(held_out[:3], sample(model, tokenizer, held_out[:3], samples_per_sum=1), strict=True):
        print(f"{item.messages[0]['content']}  {' '.join(text.split())}")
    print(json.dumps({"accuracy": measure(model, tokenizer, held_out)}))


if __name__ == "__main__":
    main()
