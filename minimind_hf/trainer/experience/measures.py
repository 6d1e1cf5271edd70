# SPDX-License-Identifier: Apache-2.0
"""The metrics of a rollout: rewards, advantages, lengths, and properties of the completions.

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
_TAIL = 16  # tokens at the end of a prompt, where a chat template opens the thought


def measure_experience(
    experience: Experience, signal_names: Sequence[str], tokenizer: PreTrainedTokenizerBase
) -> None:
    """Adds the metrics of a rollout, without stand-ins.

    Args:
        experience ([`Experience`]): A rollout with advantages.
        signal_names (`Sequence[str]`): Names of the reward functions, in the order of `Experience.signals`.
        tokenizer: Decodes the end of a prompt, to see whether it opens a thought.
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
    """Share of token n-grams that occurred earlier in the sequence; 0 if there are no n-grams."""
    grams = [tuple(ids[start : start + ngram]) for start in range(len(ids) - ngram + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def repetition(experience: Experience) -> Tensor:
    """[`repeated_share`] of each completion."""
    return torch.tensor([repeated_share(rollout.completion_ids) for rollout in experience.rollouts])


def thinking_closed(experience: Experience, tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """1 if a completion closes the thought that its prompt opens, else 0; NaN if the prompt opens none."""
    prompts = tokenizer.batch_decode([prompt["prompt_ids"][-_TAIL:] for prompt in experience.prompts])
    opens = [prompt.rstrip().endswith(THINK_BEGIN) for prompt in prompts]
    closed = torch.full((len(experience.rollouts),), torch.nan)
    for index, rollout in enumerate(experience.rollouts):
        if opens[index // experience.num_generations]:
            # Decode with special tokens: in some vocabularies the tags are special tokens.
            closed[index] = float(THINK_END in tokenizer.decode(rollout.completion_ids))
    return closed
