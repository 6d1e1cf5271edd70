# SPDX-License-Identifier: Apache-2.0
"""Episodes on stand-ins for SGLang servers that fail, are restarted or change their weights midway."""

import pytest
from naming import raises_naming
from served_episodes import PROMPTS, asked, assert_played, episodes, restart, sampling
from sessions import FixedSession
from sglang_double import SGLangDouble, aborts, answers, drops, takes
from tiny import make_policy

from minimind_hf.rollout import RolloutServerError, ServerGoneError

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
