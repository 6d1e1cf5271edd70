# SPDX-License-Identifier: Apache-2.0
"""Episodes on stand-ins for SGLang servers: the tokens of every request, who waits for whom, and what is refused."""

import threading
import time

import pytest
from naming import raises_naming
from served_episodes import PROMPTS, asked, assert_played, contexts, episodes, sampling
from sessions import FixedSession
from tiny import make_policy

from minimind_hf.rollout import RolloutServerError

FIXED = ["temperature", "stop_token_ids", "top_p", "top_k", "min_p", "repetition_penalty", "ignore_eos"]


# The main path


def test_every_turn_is_drawn_from_the_tokens_so_far_with_the_same_sampling(synced, double):
    sessions = episodes()
    rollouts = synced.converse(sessions, sampling())
    assert_played(synced, sessions, rollouts)
    assert {len(rollout.turns) for rollout in rollouts} == {4}
    assert {rollout.weights_version for rollout in rollouts} == {3}
    wanted = [ids for pair in zip(sessions, rollouts, strict=True) for ids in contexts(*pair)]
    assert sorted(asked(double)) == sorted(wanted)
    synced.generate(PROMPTS[:1], 1, sampling())
    *turns, single = double.requests["/generate"][2:]
    for request in turns:
        assert request.keys() == single.keys() and "logprob_start_len" not in request
        assert all(request["sampling_params"][name] == single["sampling_params"][name] for name in FIXED)
        assert request["sampling_params"]["n"] == 1


@pytest.mark.parametrize(("length", "turn_length"), [(14, None), (60, 3), (9, 4)])
def test_no_request_asks_for_more_than_there_is_room_for(synced, double, length, turn_length):
    sessions, params = episodes(), sampling(max_completion_length=length, max_turn_length=turn_length)
    rollouts = synced.converse(sessions, params)
    assert_played(synced, sessions, rollouts, params)
    assert "length" in {rollout.finish_reason for rollout in rollouts}
    rooms = {}
    for session, rollout in zip(sessions, rollouts, strict=True):
        for context in contexts(session, rollout):
            left = length - (len(context) - len(session.prompt_ids))
            rooms[tuple(context)] = min(left, turn_length or left)
    for request in double.requests["/generate"][2:]:
        assert request["sampling_params"]["max_new_tokens"] == rooms[tuple(request["input_ids"][0])]


def test_an_episode_stays_on_a_server_and_its_group_too(make_engine, doubles):
    engine = make_engine(*doubles)
    engine.sync_weights(make_policy(), 0)
    sessions = episodes()
    assert_played(engine, sessions, engine.converse(sessions, sampling()))
    for number, double in enumerate(doubles):
        own = PROMPTS[number::2]
        assert all(any(ids[: len(prompt)] == prompt for prompt in own) for ids in asked(double))
        assert len(asked(double)) == 2 * 2 * 4  # prompts, episodes of each, turns


def test_the_servers_share_of_cached_tokens_is_measured(synced):
    """Alone, an episode has everything in the cache but the last token of the prompt, and later the EOS of the last
    turn, which was drawn and not computed, and the three tokens of the answer to it."""
    (session,) = sessions = [FixedSession(list(PROMPTS[0]), [[11, 12, 13], [14, 15, 16]])]
    rollout = synced.converse(sessions, sampling())[0]
    lengths = [len(ids) for ids in contexts(session, rollout)]
    assert len(lengths) == 3
    assert synced.measured() == {"cached_share": (sum(length - 4 for length in lengths[1:]), sum(lengths))}
    assert synced.measured() == {"cached_share": (0, 0)}
    synced.generate(PROMPTS[1:2], 3, sampling())
    length = len(PROMPTS[1])
    assert synced.measured() == {"cached_share": (2 * (length - 1), 3 * length)}
    synced.sync_weights(make_policy(), 4)  # which empties the cache
    synced.generate(PROMPTS[1:2], 1, sampling())
    assert synced.measured() == {"cached_share": (0, length)}


def test_nobody_waits_for_the_slowest(synced):
    """The answer to a first turn comes when all other episodes have ended."""
    others_left, all_ended = set(range(1, 9)), threading.Event()

    class Slow(FixedSession):
        def observe(self, ids, finish_reason):
            assert all_ended.wait(30)
            return super().observe(ids, finish_reason)

    class Quick(FixedSession):
        def observe(self, ids, finish_reason):
            answer = super().observe(ids, finish_reason)
            if answer is None:
                others_left.discard(self.row["number"])
            if not others_left:
                all_ended.set()
            return answer

    prompts = [list(PROMPTS[number % 4]) for number in range(9)]
    sessions = [Slow(prompts[0], [[11]])]
    sessions += [Quick(prompts[number], [[11], [12]], row={"number": number}) for number in range(1, 9)]
    assert_played(synced, sessions, synced.converse(sessions, sampling()))


@pytest.mark.parametrize("workers", [1, 3])
def test_no_more_sessions_answer_at_a_time_than_tool_workers(synced, workers):
    lock, running, most = threading.Lock(), [0], []

    class Counted(FixedSession):
        def observe(self, ids, finish_reason):
            with lock:
                running[0] += 1
                most.append(running[0])
            time.sleep(0.01)
            with lock:
                running[0] -= 1
            return super().observe(ids, finish_reason)

    synced.tool_workers = workers
    synced.converse([Counted(list(PROMPTS[0]), [[11]]) for _ in range(8)], sampling())
    assert len(most) == 16 and max(most) <= workers


def test_no_sessions_no_episodes(synced):
    assert synced.converse([], sampling()) == []
    assert synced.measured() == {"cached_share": (0, 0)}


# What is refused


def test_unscaled_log_probabilities_are_noticed(make_engine, start_double):
    engine = make_engine(start_double(original_logprobs=True))
    engine.sync_weights(make_policy(), 0)
    with raises_naming(RolloutServerError, "temperature 1", "SGLANG_RETURN_ORIGINAL_LOGPROB"):
        engine.converse(episodes(), sampling())


def test_an_answer_that_would_kill_the_server_is_not_sent(synced, double):
    session = FixedSession(list(PROMPTS[0]), [[11], [12, 259]])
    with raises_naming(ValueError, "turn 2", 12, 259, "vocabulary"):
        synced.converse([session], sampling())
    assert len(asked(double)) == 2 and double.starts == 1


def test_an_answer_that_is_no_list_of_ids_is_named(synced):
    with raises_naming(TypeError, "observe", "'Go on.'"):
        synced.converse([FixedSession(list(PROMPTS[0]), ["Go on."])], sampling())


@pytest.mark.parametrize(
    ("prompt", "workers", "named"),
    [
        ([5, 259], 8, ["Prompt 1", 259, "vocabulary"]),
        ([], 8, ["Prompt 1", "tokens"]),
        ([5] * 460, 8, ["Prompt 1", 460, 452, "--context-length"]),
        ([5], 0, ["tool_workers", 0]),
    ],
)
def test_what_cannot_be_played_is_not_begun(synced, double, prompt, workers, named):
    sessions = [FixedSession([5], []), FixedSession(prompt, [])]
    synced.tool_workers = workers
    with raises_naming(ValueError, *named):
        synced.converse(sessions, sampling())
    assert asked(double) == [] and sessions[0].asked == []


def test_needs_weights_first(make_engine, double):
    with raises_naming(RuntimeError, "SGLangEngine", "sync_weights(model, version)"):
        make_engine(double).converse(episodes(), sampling())


@pytest.mark.parametrize("error", [OSError("no disk"), KeyboardInterrupt(), RolloutServerError("another server")])
def test_an_error_of_a_session_ends_all_and_asks_for_nothing_more(synced, double, error):
    class Fails(FixedSession):
        def observe(self, ids, finish_reason):
            if len(self.asked) == 1:
                raise error
            return super().observe(ids, finish_reason)

    class Hangs(FixedSession):
        def observe(self, ids, finish_reason):
            super().observe(ids, finish_reason)
            released.wait()
            return [11]

    released = threading.Event()
    sessions = [Fails(list(PROMPTS[0]), [[11]] * 3), Hangs(list(PROMPTS[1]))]
    synced.tool_workers = 2
    with pytest.raises(type(error)) as raised:
        synced.converse(sessions, sampling())
    assert raised.value is error
    before = len(asked(double))
    released.set()
    time.sleep(0.2)
    assert len(asked(double)) == before
    assert len(sessions[1].asked) == 1
