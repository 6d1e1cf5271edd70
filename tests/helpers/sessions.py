# SPDX-License-Identifier: Apache-2.0
"""Sessions with fixed answers, for tests of engines that play episodes."""

import random
import time
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class FixedSession:
    """Answers turn `i` with `answers[i]`, and ends after the last answer.

    Args:
        delays: Longest time to sleep before each answer, in seconds; the time is random.

    Attributes:
        asked: The turns and finish reasons that it was asked about.
    """

    prompt_ids: list[int]
    answers: list[list[int] | None] = field(default_factory=list)
    delays: float = 0.0
    row: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[list[int], str]] = field(default_factory=list)

    def observe(self, ids, finish_reason):
        if self.delays:
            time.sleep(random.random() * self.delays)
        self.asked.append((ids, finish_reason))
        number = len(self.asked) - 1
        return self.answers[number] if number < len(self.answers) else None


def sessions_for(prompts, num_generations=1, most_answers=3, seed=0, **settings) -> list[FixedSession]:
    """Sessions with 0 to `most_answers` random answers of 1 to 9 tokens."""
    rng = random.Random(seed)
    return [
        FixedSession(
            list(ids),
            [[rng.randrange(3, 259) for _ in range(rng.randint(1, 9))] for _ in range(rng.randint(0, most_answers))],
            **settings,
        )
        for ids in prompts
        for _ in range(num_generations)
    ]


def assert_is_what_was_asked(session: FixedSession, rollout) -> None:
    """The turns of a rollout are those that the session answered, with its answers between them."""
    turns = [rollout.completion_ids[start:end] for start, end in rollout.turns]
    assert turns == [ids for ids, _ in session.asked]
    ends = [0] + [end for _, end in rollout.turns]
    between = [rollout.completion_ids[end:start] for end, (start, _) in zip(ends[1:], rollout.turns[1:], strict=False)]
    assert between == session.answers[: len(between)]
    assert rollout.turns[0][0] == 0 and rollout.turns[-1][1] == len(rollout.completion_ids)


def assert_episode_logprobs(model, sessions, rollouts, temperature, **tolerance) -> None:
    """The log-probabilities of all turns are those of one forward over prompt and episode."""
    for session, rollout in zip(sessions, rollouts, strict=True):
        mine = torch.tensor(rollout.loss_mask) == 1
        expected = forward_logprobs(model, session, rollout, temperature)
        torch.testing.assert_close(torch.tensor(rollout.logprobs)[mine], expected[mine], **tolerance)
        assert torch.tensor(rollout.logprobs)[~mine].eq(0).all()


def forward_logprobs(model, session, rollout, temperature) -> torch.Tensor:
    """The log-probability of each token of an episode, by one forward over prompt and episode."""
    ids = torch.tensor([session.prompt_ids + rollout.completion_ids])
    with torch.no_grad():
        logits = model(ids).logits[0, len(session.prompt_ids) - 1 : -1].float()
    logps = (logits / temperature).log_softmax(-1)
    return logps.gather(1, ids[0, len(session.prompt_ids) :, None]).squeeze(1)
