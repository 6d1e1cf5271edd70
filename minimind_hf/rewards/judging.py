# SPDX-License-Identifier: Apache-2.0
"""From drawn tokens to rewards, in training and evaluation alike: what reward functions read, and what they are given.

A prompt is an example of a `PromptDataset`: `prompt` (a text or messages), `prompt_ids`, `index` and `columns`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..event_loop import Pending
from ..forward.introspection import unspoken_ids
from .scorer import RewardScorer
from .signals import Signals


def readable_completions(
    prompts: Sequence[dict],
    completion_ids: Sequence[list[int]],
    tokenizer: PreTrainedTokenizerBase,
    ends: Iterable[int] = (),
) -> list:
    """Decodes completions as reward functions read them.

    Args:
        prompts (`Sequence[dict]`): The prompts that were answered.
        completion_ids (`Sequence[list[int]]`): Tokens of the completions.
        tokenizer: Decodes them, without its BOS, EOS and PAD.
        ends (`Iterable[int]`): Further ids that end a completion.

    Returns:
        `list`: Texts where all prompts are texts, else conversations of one assistant message.
    """
    texts = readable_texts(completion_ids, tokenizer, ends)
    if all(isinstance(prompt["prompt"], str) for prompt in prompts):
        return texts
    return [[{"role": "assistant", "content": text}] for text in texts]


def readable_texts(
    completion_ids: Sequence[list[int]], tokenizer: PreTrainedTokenizerBase, ends: Iterable[int] = ()
) -> list[str]:
    """Decodes completions, all of their tokens but those of [`unspoken_ids`]."""
    unspoken = unspoken_ids(tokenizer, ends)
    return tokenizer.batch_decode([[token for token in ids if token not in unspoken] for ids in completion_ids])


def judge(
    scorer: RewardScorer,
    prompts: Sequence[dict],
    completions: Sequence[Any],
    completion_ids: Sequence[list[int]],
    **further: Any,
) -> Signals:
    """Asks every reward function about every completion; see [`begin_judging`].

    Returns:
        [`Signals`]
    """
    return begin_judging(scorer, prompts, completions, completion_ids, **further).result()


def begin_judging(
    scorer: RewardScorer,
    prompts: Sequence[dict],
    completions: Sequence[Any],
    completion_ids: Sequence[list[int]],
    **further: Any,
) -> Pending:
    """Asks every reward function about every completion, and does not wait for those that are async.

    Args:
        scorer ([`RewardScorer`]): F reward functions.
        prompts (`Sequence[dict]`): P prompts, or one for each completion.
        completions (`Sequence`): N completions, prompt-major, from [`readable_completions`].
        completion_ids (`Sequence[list[int]]`): Their tokens.
        further: More arguments for functions that ask for them.

    Returns:
        [`Pending`]: Its result is [`Signals`].
    """
    num_generations = len(completions) // len(prompts)
    repeated = [prompt for prompt in prompts for _ in range(num_generations)]
    columns = {name: [prompt["columns"][name] for prompt in repeated] for name in repeated[0]["columns"]}
    asked = [prompt["prompt"] for prompt in repeated]
    return scorer.begin(asked, completions, list(completion_ids), columns, **further)
