# SPDX-License-Identifier: Apache-2.0
"""What the completions of a rollout look like: whether they repeat themselves, and close the thinking they began."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ...rewards.rules import THINK_END
from .experience import Experience

THINK_BEGIN = "<think>"
_NGRAM = 4
_TAIL = 16  # tokens at the end of a prompt in which a template opens its thinking


def repeated_share(ids: Sequence[int], ngram: int = _NGRAM) -> float:
    """Share of the n-grams of tokens that occurred before; 0 where there are none."""
    grams = [tuple(ids[start : start + ngram]) for start in range(len(ids) - ngram + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def repetition(experience: Experience) -> Tensor:
    """[`repeated_share`] of each completion."""
    return torch.tensor([repeated_share(rollout.completion_ids) for rollout in experience.rollouts])


def thinking_closed(experience: Experience, tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """Whether a completion closes the thinking that its prompt opens: 1 or 0, NaN where the prompt opens none."""
    prompts = tokenizer.batch_decode([prompt["prompt_ids"][-_TAIL:] for prompt in experience.prompts])
    opens = [prompt.rstrip().endswith(THINK_BEGIN) for prompt in prompts]
    closed = torch.full((len(experience.rollouts),), torch.nan)
    for index, rollout in enumerate(experience.rollouts):
        if opens[index // experience.num_generations]:
            # Decoded with its special tokens: in some vocabularies the tags are among them.
            closed[index] = float(THINK_END in tokenizer.decode(rollout.completion_ids))
    return closed
