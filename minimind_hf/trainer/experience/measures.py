# SPDX-License-Identifier: Apache-2.0
"""What is measured on a rollout once it is scored: rewards, advantages, lengths, and what completions look like.

docs/metrics.md defines every name.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ...rewards.rules import THINK_END
from .experience import Experience

THINK_BEGIN = "<think>"
_NGRAM = 4
_TAIL = 16  # tokens at the end of a prompt in which a template opens its thinking


def measure_experience(
    experience: Experience, signal_names: Sequence[str], tokenizer: PreTrainedTokenizerBase
) -> None:
    """Adds the numbers of a rollout, stand-ins left out, to its metrics.

    Args:
        experience ([`Experience`]): With advantages.
        signal_names (`Sequence[str]`): Of the reward functions, in the order of `Experience.signals`.
        tokenizer: Tells whether a prompt opens a thought.
    """
    experience, metrics = experience.counted, experience.metrics
    metrics.add_values("reward", experience.rewards, std_name="reward_std")
    metrics.add_range("reward_{}", experience.rewards[~experience.rewards.isnan()])
    for name, signal in zip(signal_names, experience.signals.unbind(dim=1), strict=True):
        metrics.add_values(f"rewards/{name}/mean", signal, std_name=f"rewards/{name}/std")
    metrics.add_values("advantages/mean", experience.advantages, std_name="advantages/std")
    metrics.add_values("completions/mean_length", experience.lengths)
    metrics.add_range("completions/{}_length", experience.lengths)
    metrics.add_values("completions/clipped_ratio", experience.truncated)
    metrics.add_values("completions/repetition", repetition(experience))
    metrics.add_values("completions/thinking_closed", thinking_closed(experience, tokenizer))


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
