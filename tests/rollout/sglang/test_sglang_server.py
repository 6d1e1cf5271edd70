# SPDX-License-Identifier: Apache-2.0
"""The main path of the SGLang engine with a server of its own process: the stand-in always, and the real one, in
float32, where there is one (see sglang_process.py)."""

import copy
import threading
import time

import httpx
import pytest
import torch
from naming import raises_naming
from peft import LoraConfig, get_peft_model
from sessions import assert_episode_logprobs, assert_is_what_was_asked, sessions_for
from sglang_process import KINDS, REAL, START_TIMEOUT, make_server_trainer
from tiny import EOS, make_policy, random_ids
from transformers import TrainerCallback

from minimind_hf import SamplingParams, ServerGoneError, SGLangEngine, TorchEngine
from minimind_hf.forward.logprobs import completion_scores
from minimind_hf.rollout import RolloutServerError, check_episodes, check_rollouts

PROMPTS = random_ids(4)
ENDS = tuple(range(2, 259, 6))  # of turns: a random policy says one of these every sixth time


@pytest.fixture(params=KINDS)
def server(request, servers):
    return servers.get(request.param)


@pytest.fixture(params=["disk", "distributed"])
def engine(request, server, tmp_path):
    engine = SGLangEngine(server.url, request.param, tmp_path / "sync", server_timeout=START_TIMEOUT)
    yield engine
    engine.close()


def sampling(**changes) -> SamplingParams:
    return SamplingParams(**{"max_completion_length": 12, "temperature": 0.8, "eos_token_ids": (EOS,)} | changes)


def largest_difference(model, prompts, rollouts) -> float:
    """The largest |engine - trainer| of the log-probabilities."""
    size, largest = len(rollouts) // len(prompts), 0.0
    for number, rollout in enumerate(rollouts):
        prompt = torch.tensor([prompts[number // size]])
        completion = torch.tensor([rollout.completion_ids])
        masks = torch.ones_like(prompt), torch.ones_like(completion)
        with torch.no_grad():
            own = completion_scores(model, prompt, masks[0], completion, masks[1], 0.8).logps[0]
        largest = max(largest, (own - torch.tensor(rollout.logprobs)).abs().max().item())
    return largest


def full_model():
    return make_policy()


def lora_model():
    torch.manual_seed(0)
    return get_peft_model(
        make_policy(), LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)
    )


def move(model) -> None:
    """An update that changes log-probabilities by much."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn_like(parameter))


@pytest.mark.parametrize("make", [full_model, lora_model])
def test_log_probabilities_agree_after_each_of_5_syncs(engine, make, record_property):
    model, found = make(), []
    for version in range(5):
        engine.sync_weights(model, version)
        rollouts = engine.generate(PROMPTS, 3, sampling())
        check_rollouts(rollouts, 12, 259, engine)
        assert {rollout.weights_version for rollout in rollouts} == {version}
        found.append(largest_difference(model, PROMPTS, rollouts))
        move(model)
        assert largest_difference(model, PROMPTS, rollouts) > 0.05  # so that older weights would have been seen
    record_property("largest_difference", max(found))
    print(f"largest |engine - trainer| after each sync: {', '.join(f'{value:.1e}' for value in found)}")
    assert max(found) < 1e-4


def test_lora_arrives_as_base_and_adapter_together_each_time(engine):
    """W = 1 and BA = 0.5: the server computes with 1.5, the trainer keeps 1."""
    policy, expected = make_policy(), make_policy()
    model = get_peft_model(policy, LoraConfig(r=1, lora_alpha=1, target_modules=["v_proj"]))
    with torch.no_grad():
        for layer, plain in zip(policy.model.layers, expected.model.layers, strict=True):
            layer.self_attn.v_proj.base_layer.weight.fill_(1.0)
            layer.self_attn.v_proj.lora_A["default"].weight.fill_(0.5)
            layer.self_attn.v_proj.lora_B["default"].weight.fill_(1.0)
            plain.self_attn.v_proj.weight.fill_(1.5)
    for version in (1, 2):
        engine.sync_weights(model, version)
        rollouts = engine.generate(PROMPTS, 3, sampling())
        assert largest_difference(expected, PROMPTS, rollouts) < 1e-4
        weight = policy.model.layers[0].self_attn.v_proj.base_layer.weight
        assert torch.equal(weight, torch.ones_like(weight))


def test_completions_follow_the_contract(engine):
    engine.sync_weights(make_policy(scale=6.0), 0)
    rollouts = engine.generate(PROMPTS, 4, sampling(max_completion_length=5))
    check_rollouts(rollouts, 16, 259, engine)
    for rollout in rollouts:
        assert EOS not in rollout.completion_ids[:-1]
        assert (rollout.completion_ids[-1] == EOS) == (rollout.finish_reason == "stop")
        assert rollout.finish_reason == "stop" or len(rollout.completion_ids) == 5


def play(engine, model, tool_seconds=0.0, **changes) -> float:
    """Plays 24 episodes of up to four turns and compares every turn with the model; returns the share of tokens that
    the server had in its cache."""
    params = sampling(max_completion_length=80, max_turn_length=12, **changes)
    sessions = sessions_for(PROMPTS, 6, delays=tool_seconds)
    rollouts = engine.converse(sessions, params)
    check_episodes(rollouts, 24, 259, engine, params)
    for session, rollout in zip(sessions, rollouts, strict=True):
        assert_is_what_was_asked(session, rollout)
    assert_episode_logprobs(model, sessions, rollouts, params.temperature, atol=1e-4, rtol=0)
    assert max(len(rollout.turns) for rollout in rollouts) > 2
    cached, tokens = engine.measured()["cached_share"]
    return cached / tokens


def test_episodes_agree_at_every_turn_after_each_of_3_syncs(engine):
    model, shares = make_policy(), []
    for version in range(3):
        engine.sync_weights(model, version)
        shares.append(play(engine, model, eos_token_ids=ENDS))
        move(model)
    print(f"share of cached tokens: {', '.join(f'{share:.0%}' for share in shares)}")
    assert min(shares) > 0.2


@pytest.mark.parametrize("server", [REAL], indirect=True)
def test_the_torch_engine_and_a_server_play_the_same_greedy_episodes(engine):
    model, torch_engine = make_policy(scale=6.0), TorchEngine()
    params = sampling(max_completion_length=60, max_turn_length=8, greedy=True, temperature=1.0, eos_token_ids=ENDS)
    played = []
    for each in (engine, torch_engine):
        each.sync_weights(model, 1)
        played.append(each.converse(sessions_for(PROMPTS, 2, seed=1), params))
    for served, own in zip(*played, strict=True):
        assert (served.completion_ids, served.loss_mask) == (own.completion_ids, own.loss_mask)
        assert served.finish_reason == own.finish_reason
        assert served.logprobs == pytest.approx(own.logprobs, abs=1e-4)


def logs_of(trainer) -> list[dict]:
    return [entry for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("weight_sync", ["disk", "distributed"])
def test_training(server, weight_sync, tmp_path):
    trainer = make_server_trainer(tmp_path / "run", sglang_base_url=server.url, rollout_weight_sync=weight_sync)
    trainer.train()
    assert [entry["sampling/staleness"] for entry in logs_of(trainer)] == [0.0] * 3
    assert max(entry["sampling/sampling_logp_difference/max"] for entry in logs_of(trainer)) < 1e-4
    trainer.end()


def test_a_server_killed_for_good_leaves_a_checkpoint_that_resumes(server, tmp_path):
    class Killer(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 2:
                trainer._rollouts.engine.server_timeout = 2.0
                server.kill()

    trainer = make_server_trainer(tmp_path / "run", sglang_base_url=server.url, max_steps=4)
    trainer.add_callback(Killer())
    with raises_naming(ServerGoneError, server.url, "server_timeout", "--resume_from_checkpoint") as end:
        trainer.train()
    print(end.value)
    server.start()
    server.wait()
    resumed = make_server_trainer(tmp_path / "run", sglang_base_url=server.url, max_steps=4)
    resumed.train(resume_from_checkpoint=f"{tmp_path}/run/checkpoint-2")
    assert resumed.state.global_step == 4
    assert [entry["step"] for entry in logs_of(resumed)] == [1, 2, 3, 4]
    assert max(entry["sampling/sampling_logp_difference/max"] for entry in logs_of(resumed)) < 1e-4


def restart(server) -> None:
    server.kill()
    server.start()
    server.wait()


@pytest.mark.slow
@pytest.mark.parametrize("weight_sync", ["disk", "distributed"])
def test_a_server_restarted_between_syncs_gets_the_weights_of_the_last_one(servers, weight_sync, tmp_path):
    """Not those that the model has come to since."""
    server, model = servers.get("double"), lora_model()
    engine = SGLangEngine(server.url, weight_sync, tmp_path / "sync", server_timeout=START_TIMEOUT)
    engine.sync_weights(model, 3)
    assert largest_difference(model, PROMPTS, engine.generate(PROMPTS, 2, sampling())) < 1e-4
    sent = copy.deepcopy(model)
    move(model)
    restart(server)
    rollouts = engine.generate(PROMPTS, 2, sampling())
    assert largest_difference(sent, PROMPTS, rollouts) < 1e-4 < largest_difference(model, PROMPTS, rollouts)
    assert {rollout.weights_version for rollout in rollouts} == {3}
    engine.sync_weights(model, 4)
    assert largest_difference(model, PROMPTS, engine.generate(PROMPTS, 2, sampling())) < 1e-4
    engine.close()


def test_a_restart_between_syncs_changes_nothing_in_a_run(servers, tmp_path):
    class Restart(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 1:
                restart(server)

    server, states = servers.get("double"), []
    for callbacks in ([], [Restart()]):
        trainer = make_server_trainer(
            tmp_path / f"run-{len(callbacks)}",
            sglang_base_url=server.url,
            rollout_weight_sync="distributed",
            sync_every=2,
            max_steps=2,
        )
        for callback in callbacks:
            trainer.add_callback(callback)
        trainer.train()
        assert [entry["sampling/staleness"] for entry in logs_of(trainer)] == [0.0, 1.0]
        states.append(trainer.model.state_dict())
        trainer.end()
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


@pytest.mark.parametrize(
    "path",
    ["/init_weights_update_group", "/begin_weight_update", "/update_weights_from_distributed", "/end_weight_update"],
)
def test_a_broadcast_that_is_refused_ends_the_run_and_blocks_nothing(servers, path):
    server, model = servers.get("double"), make_policy(seed=4)
    engine = SGLangEngine(server.url, "distributed", server_timeout=START_TIMEOUT)
    refusal = {"path": path, "status": 400, "body": {"success": False, "message": "no space"}}
    httpx.post(f"{server.url}/refuse_next", json=refusal, trust_env=False)
    with raises_naming(RolloutServerError, f"{server.url}{path}", "400: no space"):
        engine.sync_weights(model, 0)
    engine.sync_weights(model, 1)  # in a new group, after closing a session that was left open
    assert largest_difference(model, PROMPTS, engine.generate(PROMPTS, 2, sampling())) < 1e-4
    engine.close()


@pytest.mark.parametrize("weight_sync", ["disk", "distributed"])
@pytest.mark.parametrize("kind", [REAL])
def test_a_server_killed_in_mid_rollout_and_started_again(servers, kind, weight_sync, tmp_path):
    server = servers.get(kind)
    engine = SGLangEngine(server.url, weight_sync, tmp_path / "sync", server_timeout=START_TIMEOUT)
    model = make_policy()
    engine.sync_weights(model, 0)
    engine.generate(PROMPTS, 1, sampling())
    tag = weight_version(server)
    killed = []

    def kill_and_restart():
        time.sleep(0.3)  # the rollout takes longer than that, whatever the machine
        killed.append(time.monotonic())
        server.kill()
        server.start()

    thread = threading.Thread(target=kill_and_restart)
    thread.start()
    # Of 259 tokens one is an EOS: completions are long, so that the rollout outlasts the kill.
    rollouts = engine.generate(PROMPTS, 8, sampling(max_completion_length=200))
    assert killed and time.monotonic() > killed[0]
    thread.join()
    check_rollouts(rollouts, 32, 259, engine)
    assert largest_difference(model, PROMPTS, rollouts) < 1e-4
    assert weight_version(server) == tag
    assert engine.generate(PROMPTS, 1, sampling())
    engine.close()


@pytest.mark.parametrize("weight_sync", ["disk", "distributed"])
@pytest.mark.parametrize("kind", [REAL])
def test_a_server_killed_in_mid_episode_and_started_again(servers, kind, weight_sync, tmp_path):
    server, model, killed = servers.get(kind), make_policy(), []
    engine = SGLangEngine(server.url, weight_sync, tmp_path / "sync", server_timeout=START_TIMEOUT)
    engine.sync_weights(model, 0)
    tag = weight_version(server)

    def kill_and_restart():
        killed.append(time.monotonic())
        restart(server)

    timer = threading.Timer(0.5, kill_and_restart)
    timer.start()
    play(engine, model, tool_seconds=1.0, eos_token_ids=ENDS)  # its answers take longer than that
    assert time.monotonic() > killed[0]
    timer.join()
    assert weight_version(server) == tag
    engine.close()


def weight_version(server) -> str:
    return httpx.get(f"{server.url}/model_info", timeout=60, trust_env=False).json()["weight_version"]


def count_requests(engine) -> list[str]:
    """Returns a list that each request for completions adds its server to."""
    asked = []

    def counted(server):
        ask = server.generate

        def generate(payload):
            asked.append(server.url)
            return ask(payload)

        return generate

    for server in engine.servers:
        server.generate = counted(server)
    return asked


@pytest.mark.parametrize("kind", [REAL])
def test_several_servers(servers, kind, tmp_path):
    both = [servers.get(kind, number) for number in (0, 1)]
    urls = [server.url for server in both]
    for weight_sync in ("disk", "distributed"):
        engine, model = SGLangEngine(urls, weight_sync, tmp_path / "sync", START_TIMEOUT), make_policy(seed=3)
        for version in (1, 2):
            engine.sync_weights(model, version)
            asked = count_requests(engine)
            rollouts = engine.generate(PROMPTS, 3, sampling())
            check_rollouts(rollouts, 12, 259, engine)
            assert largest_difference(model, PROMPTS, rollouts) < 1e-4
            assert sorted(asked) == sorted(2 * urls)  # four prompts, two for each
            play(engine, model, eos_token_ids=ENDS)
            assert set(asked) == set(urls)
            assert len({weight_version(server) for server in both}) == 1
            move(model)
        engine.close()
    both[1].kill()  # it is not needed again
