# SPDX-License-Identifier: Apache-2.0
"""Servers that give their memory back during the update: the order of calls, weights that are never old or lost, and
answers that end the run. With a stand-in that dies of what the real server dies of, and with the real one."""

import pytest
import torch
from naming import raises_naming
from sglang_double import answers, drops
from sglang_process import REAL, START_TIMEOUT, make_server_trainer
from test_sglang_engine import PROMPTS, assert_scored_by, lose_patience, sampling
from test_sglang_server import move
from tiny import make_policy

from minimind_hf import SGLangEngine
from minimind_hf.rollout import RolloutServerError, ServerGoneError
from minimind_hf.rollout.sglang import engine as engine_module

RELEASE = "release_memory_occupation kv_cache weights"
WAKING = ["resume_memory_occupation weights", "update_weights_from_disk", "resume_memory_occupation kv_cache"]


def control_calls(double) -> list[str]:
    return [call for call in double.calls if call.split()[0] not in ("generate", "begin_weight_update")]


@pytest.fixture
def sleeper(make_engine, double):
    """An engine that sleeps after completions of `make_policy()`."""
    engine = make_engine(double, sleeps=True)
    engine.sync_weights(make_policy(), version=0)
    engine.generate(PROMPTS, 2, sampling())
    double.calls.clear()
    return engine


def test_new_weights_come_between_weights_and_cache(sleeper, double):
    model = make_policy()
    sleeper.rest()
    assert double.released == {"kv_cache", "weights"}
    move(model)
    sleeper.sync_weights(model, version=1)
    assert control_calls(double) == ["flush_cache", RELEASE, *WAKING]
    assert not double.released
    rollouts = sleeper.generate(PROMPTS, 2, sampling())
    assert_scored_by(model, PROMPTS, rollouts)
    assert {rollout.weights_version for rollout in rollouts} == {1}


def test_completions_without_a_sync_come_from_the_weights_that_were_sent_last(sleeper, double):
    """As with `sync_every` above 1: a sleeping server has lost them, and the model has moved on."""
    sleeper.rest()
    move(sleeper._model)
    assert_scored_by(make_policy(), PROMPTS, sleeper.generate(PROMPTS, 2, sampling()))
    assert control_calls(double) == ["flush_cache", RELEASE, *WAKING]


def test_resting_twice_releases_once(sleeper, double):
    sleeper.rest()
    sleeper.rest()
    assert control_calls(double) == ["flush_cache", RELEASE]


def test_every_server_sleeps_and_wakes(start_double, make_engine):
    doubles = start_double(), start_double()
    engine, model = make_engine(*doubles, sleeps=True), make_policy()
    engine.sync_weights(model, version=0)
    engine.rest()
    assert all(double.released for double in doubles)
    engine.sync_weights(model, version=1)
    assert not any(double.released for double in doubles)
    assert_scored_by(model, PROMPTS, engine.generate(PROMPTS, 1, sampling()))


def test_without_the_setting_nothing_is_released(make_engine, double):
    engine = make_engine(double)
    engine.rest()
    engine.sync_weights(make_policy(), version=0)
    engine.rest()
    assert not double.requests["/release_memory_occupation"]


def test_nothing_is_released_before_the_first_weights(make_engine, double):
    make_engine(double, sleeps=True).rest()
    assert not double.calls


def test_a_busy_server_is_waited_for(sleeper, double):
    busy = answers(400, {"success": False, "message": "there are running requests"})
    double.next("/flush_cache", busy, busy)
    sleeper.rest()
    assert control_calls(double) == ["flush_cache"] * 3 + [RELEASE]


def test_a_server_that_stays_busy_is_given_up_awake(sleeper, double):
    lose_patience(sleeper)
    double.next("/flush_cache", *[answers(400, {"success": False, "message": "busy"})] * 50)
    with raises_naming(ServerGoneError, double.url, "still running requests"):
        sleeper.rest()
    assert not double.requests["/release_memory_occupation"]


@pytest.mark.parametrize("path", ["/release_memory_occupation", "/resume_memory_occupation"])
@pytest.mark.parametrize(
    ("fault", "named"),
    [
        (answers(400, {"error": {"message": "not now"}}), ["400", "not now"]),
        (answers(401, {"error": "Unauthorized"}), ["401", "SGLANG_ADMIN_API_KEY"]),
    ],
    ids=["refused", "no key"],
)
def test_a_refusal_ends_the_run(sleeper, double, path, fault, named):
    double.next(path, fault)
    with raises_naming(RolloutServerError, double.url, path, *named):
        sleeper.rest()
        sleeper.sync_weights(make_policy(), version=1)


def test_a_lost_answer_is_not_repeated(sleeper, double):
    """What was resumed must not be resumed again, and a lost answer does not tell."""
    sleeper.rest()
    double.next("/resume_memory_occupation", drops)
    with pytest.raises(Exception, match="resume_memory_occupation"):
        sleeper.sync_weights(make_policy(), version=1)
    assert len(double.requests["/resume_memory_occupation"]) == 1


def test_a_server_that_was_restarted_in_its_sleep_only_gets_weights(sleeper, double, caplog):
    sleeper.rest()
    double.stop()
    double.start()
    double.calls.clear()
    model = make_policy()
    move(model)
    sleeper.sync_weights(model, version=1)
    assert control_calls(double) == ["update_weights_from_disk"]
    assert "restarted in its sleep" in caplog.text
    assert_scored_by(model, PROMPTS, sleeper.generate(PROMPTS, 2, sampling()))


def test_a_server_that_would_keep_its_memory_is_refused(make_engine, double):
    double.memory_saver = False
    with raises_naming(RolloutServerError, double.url, "--enable-memory-saver", "sglang_enable_sleep_mode"):
        make_engine(double, sleeps=True).check_ready(make_policy(), None, 8)


def test_a_run_sleeps_once_a_step_and_ends_where_one_without_does(start_double, tmp_path):
    weights = {}
    for sleeps in (False, True):
        double = start_double()
        trainer = make_server_trainer(
            tmp_path / str(sleeps), sglang_base_url=[double.url], sglang_enable_sleep_mode=sleeps
        )
        trainer.train()
        assert len(double.requests["/release_memory_occupation"]) == (3 if sleeps else 0)
        weights[sleeps] = dict(trainer.policy.named_parameters())
    for name, parameter in weights[False].items():
        assert torch.equal(weights[True][name], parameter)


def test_evaluation_wakes_it_and_lets_it_sleep_again(start_double, tmp_path):
    double = start_double()
    trainer = make_server_trainer(tmp_path, sglang_base_url=[double.url], sglang_enable_sleep_mode=True, max_steps=1)
    trainer.train()
    trainer.evaluate(trainer.train_dataset)
    assert double.released == {"kv_cache", "weights"}
    assert trainer.evaluate(trainer.train_dataset)["eval_reward"] >= 0


@pytest.mark.slow
@pytest.mark.parametrize("weight_sync", ["disk", "distributed"])
@pytest.mark.parametrize("kind", ["double", REAL])
def test_a_server_of_its_own_process(kind, weight_sync, servers, tmp_path, monkeypatch):
    """The real one has no memory saver on a CPU: it is refused, and with the check left out it takes the calls."""
    server, model = servers.get(kind), make_policy()
    engine = SGLangEngine(server.url, weight_sync, tmp_path / "sync", server_timeout=START_TIMEOUT, sleeps=True)
    if kind == "real":
        with raises_naming(RolloutServerError, server.url, "--enable-memory-saver"):
            engine.check_ready(model, None, 12)
        monkeypatch.setattr(engine_module, "check_can_sleep", lambda server: None)
    for version in range(3):
        engine.sync_weights(model, version)
        assert_scored_by(model, PROMPTS, engine.generate(PROMPTS, 2, sampling(max_completion_length=12)))
        engine.rest()
        move(model)
    engine.sync_weights(model, 3)  # and leaves it awake
    assert_scored_by(model, PROMPTS, engine.generate(PROMPTS, 2, sampling(max_completion_length=12)))
    engine.close()
