# SPDX-License-Identifier: Apache-2.0
"""The metrics of a rollout: rewards, advantages, lengths, and properties of the completions.

docs/metrics.md defines every name.
"""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ...rewards.rules import THINK_END
from .experience import Experience

THINK_BEGIN = "<think>"
TURNS_SHOWN = 8  # turns whose rewards are logged
FAILURES = ("unparsed", "unknown", "arguments", "raised", "timeout")  # kinds of `Episode.failed_calls`
_NGRAM = 4
_TAIL = 16  # tokens at the end of a prompt, where a chat template opens the thought


def measure_experience(
    experience: Experience, signal_names: Sequence[str], tokenizer: PreTrainedTokenizerBase
) -> None:
    """Adds the metrics of a rollout, without stand-ins.

    Args:
        experience ([`Experience`]): A rollout, with advantages where the algorithm has some.
        signal_names (`Sequence[str]`): Names of the reward functions, in the order of `Experience.signals`.
        tokenizer: Decodes the end of a prompt, to see whether it opens a thought.
    """
    experience, metrics = experience.counted, experience.metrics
    metrics.add_values("reward", experience.rewards, std_name="reward_std")
    metrics.add_range("reward_{}", experience.rewards[~experience.rewards.isnan()])
    for name, signal in zip(signal_names, experience.signals.unbind(dim=1), strict=True):
        metrics.add_values(f"rewards/{name}/mean", signal, std_name=f"rewards/{name}/std")
    if experience.advantages is not None:
        metrics.add_values("advantages/mean", experience.advantages, std_name="advantages/std")
    metrics.add_values("completions/mean_length", experience.lengths)
    metrics.add_range("completions/{}_length", experience.lengths)
    metrics.add_values("completions/clipped_ratio", experience.truncated)
    metrics.add_values("completions/repetition", repetition(experience))
    metrics.add_values("completions/thinking_closed", thinking_closed(experience, tokenizer))
    if experience.turn_rewards is not None:
        _measure_turn_rewards(experience)
    if experience.episodes is not None:
        _measure_episodes(experience)


def _measure_turn_rewards(experience: Experience) -> None:
    for turn in range(TURNS_SHOWN):
        rewards = [row[turn] for row in experience.turn_rewards if len(row) > turn]
        experience.metrics.add_values(f"rewards/turn_{turn + 1}", torch.tensor(rewards, dtype=torch.float64))


def _measure_episodes(experience: Experience) -> None:
    episodes, metrics = experience.episodes, experience.metrics
    num_tokens = sum(len(rollout.completion_ids) for rollout in experience.rollouts)
    calls = sum(episode.calls for episode in episodes)
    failed = sum((Counter(episode.failed_calls) for episode in episodes), Counter())
    metrics.add_values("episodes/turns", torch.tensor(experience.num_turns))
    metrics.add_values("episodes/reached_max_turns", torch.tensor([each.reached_max_turns for each in episodes]))
    metrics.add_values("episodes/cut_observations", torch.tensor([each.cut_observations for each in episodes]))
    metrics.add_mean("episodes/observation_share", num_tokens - int(experience.lengths.sum()), num_tokens)
    metrics.add_mean("tools/call_frequency", calls, len(episodes))
    metrics.add_mean("tools/failure_frequency", failed.total(), calls)
    for kind in FAILURES:
        metrics.add_mean(f"tools/failed/{kind}", failed[kind], calls)
    metrics.add_values("tools/seconds", torch.tensor([each.tool_seconds for each in episodes]))


def repeated_share(ids: Sequence[int], ngram: int = _NGRAM) -> float:
    """Share of token n-grams that occurred earlier in the sequence; 0 if there are no n-grams."""
    grams = [tuple(ids[start : start + ngram]) for start in range(len(ids) - ngram + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def repetition(experience: Experience) -> Tensor:
    """[`repeated_share`] of the policy's tokens in each completion."""
    return torch.tensor([repeated_share(ids) for ids in experience.policy_ids])


def thinking_closed(experience: Experience, tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """1 if a completion closes the thought that its prompt opens, else 0; NaN if the prompt opens none."""
    ends = [tuple(experience.prompt_of(index)["prompt_ids"][-_TAIL:]) for index in range(len(experience.rollouts))]
    opens = {end: tokenizer.decode(end).rstrip().endswith(THINK_BEGIN) for end in set(ends)}
    closed = torch.full((len(experience.rollouts),), torch.nan)
    for index, (end, ids) in enumerate(zip(ends, experience.policy_ids, strict=True)):
        if opens[end]:
            # Decode with special tokens: in some vocabularies the tags are special tokens.
            closed[index] = float(THINK_END in tokenizer.decode(ids))
    return closed
