# SPDX-License-Identifier: Apache-2.0
"""Episodes with an engine that only draws completions: one turn of all at a time, each from its tokens so far."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .checks import check_rollouts
from .observers import TOOL_WORKERS, Observers
from .samples import Rollout, SamplingParams
from .session import Session
from .transcript import Transcript


def play_in_rounds(engine: Any, sessions: Sequence[Session], sampling: SamplingParams) -> list[Rollout]:
    """Plays episodes as `RolloutEngine.converse` says, with any object that has a `generate`.

    A round draws the next turn of every session that has not ended, with a seed of its own, and then waits until all
    have answered.
    """
    transcripts = [Transcript(sampling) for _ in sessions]
    versions: list[int] = [0] * len(sessions)
    running, number = list(range(len(sessions))), 0
    with Observers(getattr(engine, "tool_workers", TOOL_WORKERS)) as observers:
        while running:
            turns = _draw(engine, [(sessions[i], transcripts[i]) for i in running], sampling, number)
            for i, turn in zip(running, turns, strict=True):
                transcripts[i].add_turn(
                    turn.completion_ids, turn.logprobs, turn.finish_reason, turn.loss_mask, turn.kept
                )
                versions[i] = min(versions[i], turn.weights_version) if number else turn.weights_version
                observers.submit(i, sessions[i].observe, turn.completion_ids, turn.finish_reason)
            answers = observers.all()
            running, number = [i for i in running if transcripts[i].answer(answers[i])], number + 1
    return [transcript.rollout(version) for transcript, version in zip(transcripts, versions, strict=True)]


def _draw(
    engine: Any, episodes: list[tuple[Session, Transcript]], sampling: SamplingParams, number: int
) -> list[Rollout]:
    """Returns the turns of round `number`, none longer than its episode has room for."""
    longest = max(transcript.room for _, transcript in episodes)
    seed = random.Random(f"{sampling.seed} {number}").getrandbits(31) if number else sampling.seed
    asked = replace(sampling, max_completion_length=longest, max_turn_length=None, seed=seed)
    turns = engine.generate([[*session.prompt_ids, *transcript.ids] for session, transcript in episodes], 1, asked)
    check_rollouts(turns, len(episodes), math.inf, engine, longest, asked)
    return [_cut(turn, transcript.room) for turn, (_, transcript) in zip(turns, episodes, strict=True)]


def _cut(turn: Rollout, length: int) -> Rollout:
    if len(turn.completion_ids) <= length:
        return turn
    mask, kept = (None if each is None else each[:length] for each in (turn.loss_mask, turn.kept))
    return Rollout(turn.completion_ids[:length], turn.logprobs[:length], "length", mask, turn.weights_version, kept)
