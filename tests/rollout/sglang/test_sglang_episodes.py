# SPDX-License-Identifier: Apache-2.0
"""Episodes on stand-ins for SGLang servers: the tokens of every request, and everything that can happen midway."""

import threading
import time

import pytest
from naming import raises_naming
from sessions import FixedSession, assert_episode_logprobs, assert_is_what_was_asked, sessions_for
from sglang_double import SGLangDouble, aborts, answers, drops, takes
from tiny import EOS, make_policy, random_ids

from minimind_hf.rollout import RolloutServerError, SamplingParams, ServerGoneError, check_episodes

PROMPTS = random_ids(4)
FIXED = ["temperature", "stop_token_ids", "top_p", "top_k", "min_p", "repetition_penalty", "ignore_eos"]


def sampling(**changes) -> SamplingParams:
    return SamplingParams(**{"max_completion_length": 60, "temperature": 0.8, "eos_token_ids": (EOS,)} | changes)


def episodes(prompts=PROMPTS, num_generations=2, num_answers=3, **settings) -> list[FixedSession]:
    """Sessions that answer `num_answers` turns, each in its own words."""
    sessions = sessions_for(prompts, num_generations, **settings)
    for number, session in enumerate(sessions):
        session.answers = [[10 + number, 20 + turn, 30] for turn in range(num_answers)]
    return sessions


@pytest.fixture
def doubles(start_double):
    return start_double(), start_double()


@pytest.fixture
def double(start_double):
    return start_double()


@pytest.fixture
def synced(make_engine, double):
    engine = make_engine(double)
    engine.sync_weights(make_policy(), version=3)
    return engine


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
    assert max(most) == workers


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
    sessions = [Fails(list(PROMPTS[0]), [[11]] * 3), Hangs(list(PROMPTS[1])), Hangs(list(PROMPTS[2]))]
    synced.tool_workers = 2
    with pytest.raises(type(error)) as raised:
        synced.converse(sessions[:2], sampling())
    assert raised.value is error
    before = len(asked(double))
    released.set()
    time.sleep(0.2)
    assert len(asked(double)) == before
    assert len(sessions[1].asked) == 1


# Servers that fail


ANSWERS = takes(0)
PASSING = {
    "dropped": [drops] * 2,
    "503": [answers(503, {"error": "busy"})] * 2,
    "aborted": [aborts(1)] * 3,
    "cut": [ANSWERS, aborts(1)] * 3,
}


@pytest.mark.parametrize("faults", PASSING.values(), ids=PASSING)
def test_a_turn_that_fails_is_asked_for_again_and_no_other(synced, double, faults):
    expected = synced.converse(episodes(), sampling())
    before, syncs = len(asked(double)), len(double.versions)
    double.next("/generate", *faults)
    sessions = episodes()
    rollouts = synced.converse(sessions, sampling())
    assert rollouts == expected
    assert_played(synced, sessions, rollouts)
    failed = sum(fault is not ANSWERS for fault in faults)
    again = asked(double)[before:]
    assert len(again) == 8 * 4 + failed
    assert {len(session.asked) for session in sessions} == {4}  # nobody was asked twice for a turn
    assert len(double.versions) == syncs


def test_turns_that_are_always_aborted_are_given_up(synced, double):
    synced.server_timeout = 0.5
    double.next("/generate", *[ANSWERS] * 3, *[aborts(1)] * 200)
    with raises_naming(ServerGoneError, double.url, "server_timeout", "Aborted by the test"):
        synced.converse(episodes(PROMPTS[:1], 1), sampling())


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


@pytest.mark.parametrize("turn", [0, 2])
def test_a_server_killed_in_mid_episode_and_started_again(synced, double, turn):
    expected = synced.converse(episodes(), sampling())
    double.next("/generate", *[ANSWERS] * (8 * turn), restart(double))
    sessions = episodes()
    rollouts = synced.converse(sessions, sampling())
    assert rollouts == expected
    assert_played(synced, sessions, rollouts)
    assert {rollout.weights_version for rollout in rollouts} == {3}
    assert double.starts == 2 and len(double.versions) == 1  # it was sent the weights once since it is back


def test_a_server_restarted_unnoticed_between_two_turns_gets_its_weights_again(synced, double):
    """No connection breaks; only the name of the weights in its answer tells."""

    class Restarts(FixedSession):
        def observe(self, ids, finish_reason):
            if len(self.asked) == 1:
                double.stop()
                double.start()
            return super().observe(ids, finish_reason)

    sessions = [Restarts(list(PROMPTS[0]), [[11], [12], [13]])]
    rollouts = synced.converse(sessions, sampling())
    assert_played(synced, sessions, rollouts)
    assert double.starts == 2 and len(double.versions) == 1


def test_one_of_two_servers_restarts_and_the_other_plays_on(make_engine, doubles):
    engine = make_engine(*doubles)
    engine.sync_weights(make_policy(), 0)
    expected = engine.converse(episodes(), sampling())
    counts = [len(asked(double)) for double in doubles]
    doubles[1].next("/generate", *[ANSWERS] * 5, restart(doubles[1]))
    sessions = episodes()
    assert engine.converse(sessions, sampling()) == expected
    assert_played(engine, sessions, expected)
    assert len(asked(doubles[0])) == 2 * counts[0]  # nothing was asked twice
    assert [len(double.versions) for double in doubles] == [1, 1]


def test_a_server_that_stays_away_is_given_up(synced, double):
    def die(answer):
        double.stop()
        return answer()

    synced.server_timeout = 0.5
    double.next("/generate", *[ANSWERS] * 9, die)
    with raises_naming(ServerGoneError, double.url, "0.5 s", "server_timeout"):
        synced.converse(episodes(), sampling())


def test_a_turn_that_takes_too_long_is_given_up(synced, double):
    synced.servers[0]._http.timeout = 0.5
    double.next("/generate", ANSWERS, takes(2))
    with raises_naming(ServerGoneError, double.url, "/generate", "server_timeout"):
        synced.converse(episodes(PROMPTS[:1], 1), sampling())


# Weights


def other_weights(double: SGLangDouble, name: str):
    """A fault: somebody else has changed the weights."""

    def fault(answer):
        double.model, double.version = make_policy(seed=7), name
        return answer()

    return fault


def test_a_turn_from_other_weights_is_asked_for_again_when_they_were_sent_again(synced, double):
    expected = synced.converse(episodes(PROMPTS[:1], 1), sampling())
    double.next("/generate", ANSWERS, ANSWERS, other_weights(double, "theirs"))
    sessions = episodes(PROMPTS[:1], 1)
    assert synced.converse(sessions, sampling()) == expected
    assert len(sessions[0].asked) == 4 and len(double.versions) == 2


def test_weights_of_another_run_end_the_run_at_the_turn_that_shows_them(synced, double):
    double.next("/generate", ANSWERS, ANSWERS, other_weights(double, "minimind-hf-other-1"))
    with raises_naming(RolloutServerError, double.url, "minimind-hf-other-1", "another run"):
        synced.converse(episodes(PROMPTS[:1], 1), sampling())


def test_episodes_after_a_sync_come_from_the_new_weights_alone(synced, double):
    for version in (4, 5):
        model = make_policy(seed=version)
        synced.sync_weights(model, version)
        sessions = episodes()
        rollouts = synced.converse(sessions, sampling())
        assert_played(synced, sessions, rollouts, model=model)
        assert {rollout.weights_version for rollout in rollouts} == {version}
