# SPDX-License-Identifier: Apache-2.0
"""Episodes on stand-ins for SGLang servers, and what must be true of them."""

import threading
import time

from sessions import FixedSession, assert_episode_logprobs, assert_is_what_was_asked, sessions_for
from sglang_double import SGLangDouble
from tiny import EOS, make_policy, random_ids

from minimind_hf.rollout import SamplingParams, check_episodes

PROMPTS = random_ids(4)


def sampling(**changes) -> SamplingParams:
    return SamplingParams(**{"max_completion_length": 60, "temperature": 0.8, "eos_token_ids": (EOS,)} | changes)


def episodes(prompts=PROMPTS, num_generations=2, num_answers=3, **settings) -> list[FixedSession]:
    """Sessions that answer `num_answers` turns, each in its own words."""
    sessions = sessions_for(prompts, num_generations, **settings)
    for number, session in enumerate(sessions):
        session.answers = [[10 + number, 20 + turn, 30] for turn in range(num_answers)]
    return sessions


def asked(double: SGLangDouble) -> list[list[int]]:
    """The prompts of all requests behind the two that compare vocabularies."""
    return [request["input_ids"][0] for request in double.requests["/generate"][2:]]


def assert_played(engine, sessions, rollouts, params=None, model=None) -> None:
    check_episodes(rollouts, len(sessions), 259, engine, params or sampling())
    for session, rollout in zip(sessions, rollouts, strict=True):
        assert_is_what_was_asked(session, rollout)
    assert_episode_logprobs(model or make_policy(), sessions, rollouts, 0.8, atol=1e-5, rtol=0)


def contexts(session: FixedSession, rollout) -> list[list[int]]:
    """What each turn of an episode has to be drawn from."""
    return [session.prompt_ids + rollout.completion_ids[:start] for start, _ in rollout.turns]


def restart(double, seconds: float = 0.3):
    """A fault: the server goes away before it answers, and is back later with the weights of its folder."""

    def later():
        double.stop()
        time.sleep(seconds)
        double.start()

    def fault(answer):
        threading.Thread(target=later).start()
        time.sleep(0.2)
        return answer()

    return fault
