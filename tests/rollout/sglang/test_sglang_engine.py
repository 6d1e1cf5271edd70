# SPDX-License-Identifier: Apache-2.0
"""The SGLang engine against a stand-in for the server: the protocol, and everything that can go wrong with it."""

import logging
import threading
import time
from pathlib import Path

import httpx
import pytest
import torch
from naming import raises_naming
from peft import LoraConfig, get_peft_model
from sglang_double import aborts, answers, changes, drops, takes
from tiny import EOS, make_llama, make_policy, random_ids

from minimind_hf.forward.logprobs import completion_scores
from minimind_hf.rollout import RolloutServerError, SamplingParams, ServerGoneError, SGLangEngine, check_rollouts

PROMPTS = random_ids(5)


def sampling(**changes) -> SamplingParams:
    return SamplingParams(**{"max_completion_length": 8, "temperature": 0.8, "eos_token_ids": (EOS,)} | changes)


def lose_patience(engine) -> None:
    """From now on a server may fail for half a second only; until here, a busy machine is no failure."""
    engine.server_timeout = 0.5


def own_logprobs(model, prompt, rollout, temperature=0.8) -> list[float]:
    prompt, completion = torch.tensor([prompt]), torch.tensor([rollout.completion_ids])
    masks = torch.ones_like(prompt), torch.ones_like(completion)
    with torch.no_grad():
        return completion_scores(model, prompt, masks[0], completion, masks[1], temperature).logps[0].tolist()


def assert_scored_by(model, prompts, rollouts):
    size = len(rollouts) // len(prompts)
    for number, rollout in enumerate(rollouts):
        assert rollout.logprobs == pytest.approx(own_logprobs(model, prompts[number // size], rollout), abs=1e-5)


# The main path


def test_completions_come_from_the_weights_that_were_sent(synced, double):
    rollouts = synced.generate(PROMPTS, 3, sampling())
    check_rollouts(rollouts, 15, 259, synced)
    assert_scored_by(make_policy(), PROMPTS, rollouts)
    assert {rollout.weights_version for rollout in rollouts} == {3}
    assert {rollout.finish_reason for rollout in rollouts} == {"stop", "length"} or all(
        rollout.completion_ids[-1] == EOS for rollout in rollouts
    )
    assert [len(request["input_ids"]) for request in double.requests["/generate"][2:]] == [1] * 5


def test_order_is_prompt_major_over_several_servers(start_double, make_engine):
    doubles = start_double(), start_double()
    engine = make_engine(*doubles)
    engine.sync_weights(make_policy(), version=0)
    rollouts = engine.generate(PROMPTS, 2, sampling())
    assert_scored_by(make_policy(), PROMPTS, rollouts)
    asked = [[request["input_ids"][0] for request in double.requests["/generate"][2:]] for double in doubles]
    assert sorted(map(len, asked)) == [2, 3]
    assert sorted(asked[0] + asked[1]) == sorted(PROMPTS)


def test_a_cut_completion_is_told_from_an_ended_one(synced):
    rollouts = synced.generate(PROMPTS, 4, sampling(max_completion_length=3))
    for rollout in rollouts:
        is_ended = rollout.completion_ids[-1] == EOS
        assert rollout.finish_reason == ("stop" if is_ended else "length")
        assert is_ended or len(rollout.completion_ids) == 3
    assert len({rollout.finish_reason for rollout in rollouts}) == 2


def test_everything_that_changes_the_distribution_is_set(synced, double):
    synced.generate(PROMPTS[:1], 2, sampling(temperature=0.7))
    asked = double.requests["/generate"][-1]
    assert asked["return_logprob"] is True
    expected = {
        "n": 2, "temperature": 0.7, "max_new_tokens": 8, "stop_token_ids": [EOS], "top_p": 1.0, "top_k": -1,
        "min_p": 0.0, "repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0,
    }  # fmt: skip
    assert expected.items() <= asked["sampling_params"].items()


def test_each_sync_leaves_one_folder_and_flushes_the_cache(synced, double, tmp_path):
    for version in (4, 5):
        model = make_policy(seed=version)
        synced.sync_weights(model, version)
        assert_scored_by(model, PROMPTS, synced.generate(PROMPTS, 1, sampling()))
        (folder,) = (tmp_path / "sync").iterdir()
        asked = double.requests["/update_weights_from_disk"][-1]
        assert asked["model_path"] == str(folder)
        assert asked["flush_cache"] is True
        assert asked["weight_version"] == double.version
    assert len(set(double.versions)) == 3
    synced.close()
    assert not (tmp_path / "sync").exists()


def test_what_a_killed_run_left_is_removed(make_engine, double, tmp_path):
    for name in ("weights-minimind-hf-old-7", "weights-minimind-hf-old-8.part"):
        (tmp_path / "sync" / name).mkdir(parents=True)
    (tmp_path / "sync" / "mine.txt").write_text("not a folder of weights")
    make_engine(double).sync_weights(make_policy(), 0)
    assert len(list((tmp_path / "sync").glob("weights-*"))) == 1
    assert (tmp_path / "sync" / "mine.txt").exists()


def test_lora_arrives_merged_and_the_trainers_weights_stay(make_engine, double):
    policy = make_policy()
    model = get_peft_model(policy, LoraConfig(r=1, lora_alpha=1, target_modules=["q_proj"]))
    layer = policy.model.layers[0].self_attn.q_proj
    with torch.no_grad():
        layer.base_layer.weight.fill_(1.0)
        layer.lora_A["default"].weight.fill_(0.5)
        layer.lora_B["default"].weight.fill_(1.0)
    engine = make_engine(double)
    for version in (1, 2):
        engine.sync_weights(model, version)
        arrived = double.model.model.layers[0].self_attn.q_proj.weight
        assert torch.equal(arrived, torch.full_like(arrived, 1.5))
        assert torch.equal(layer.base_layer.weight, torch.ones_like(arrived))
        assert not layer.merged
    assert_scored_by(model, PROMPTS, engine.generate(PROMPTS, 2, sampling()))


def test_weights_arrive_in_the_trainers_dtype(make_engine, double):
    make_engine(double).sync_weights(make_policy().to(torch.bfloat16), 0)
    assert double.model.dtype == torch.bfloat16


def test_no_prompts_no_completions(synced):
    assert synced.generate([], 3, sampling()) == []


# Before the first step


def test_a_server_that_is_not_there_is_told_how_to_start(make_engine, start_double):
    double = start_double()
    double.stop()
    policy = make_policy()
    policy.config._name_or_path = "out/start"
    with pytest.raises(ServerGoneError) as raised:
        make_engine(double, timeout=0.3).check_ready(policy, 10, 8)
    message = str(raised.value)
    assert "minimind-hf convert out/start out/start-qwen3 --to qwen3" in message
    assert f"sglang.launch_server --model-path out/start-qwen3 --port {double.port}" in message


def test_a_server_that_starts_late_is_waited_for(make_engine, start_double):
    double = start_double()
    double.stop()
    threading.Timer(0.5, double.start).start()
    make_engine(double).check_ready(make_policy(), 10, 8)


@pytest.mark.parametrize(
    ("policy", "changes", "named"),
    [
        (make_llama, {}, ["Qwen3ForCausalLM", "LlamaForCausalLM", "sglang.launch_server"]),
        (
            lambda: make_policy(use_moe=True),
            {},
            ["Qwen3ForCausalLM", "MiniMindForCausalLM", "Qwen3MoeForCausalLM", "minimind-hf convert"],
        ),
        (lambda: make_policy(vocab_size=300), {}, ["vocabulary", 300]),
        (lambda: make_policy(vocab_size=200), {}, ["vocabulary", 200]),
        (
            make_policy,
            {"context": 17},
            ["max_prompt_length", 10, "max_completion_length", 8, 18, 17, "--context-length"],
        ),
    ],
)
def test_a_server_of_another_model_is_refused(make_engine, double, policy, changes, named):
    for name, value in changes.items():
        setattr(double, name, value)
    with raises_naming(RolloutServerError, *named):
        make_engine(double).check_ready(policy(), 10, 8)


def test_a_deterministic_server_is_refused(make_engine, double):
    double.next("/server_info", changes(lambda info: info | {"enable_deterministic_inference": True}))
    with raises_naming(RolloutServerError, double.url, "--enable-deterministic-inference"):
        make_engine(double).check_ready(make_policy(), 10, 8)


def test_unscaled_log_probabilities_are_noticed(make_engine, start_double):
    engine = make_engine(start_double(original_logprobs=True))
    engine.sync_weights(make_policy(), 0)
    with raises_naming(RolloutServerError, "temperature 1", "SGLANG_RETURN_ORIGINAL_LOGPROB"):
        engine.generate(PROMPTS, 2, sampling())


def test_log_probabilities_of_another_function_are_noticed(synced, double):
    def shift(items):
        for item in items:
            for entry in item["meta_info"]["output_token_logprobs"]:
                entry[0] -= 0.5
        return items

    double.next("/generate", *[changes(shift)] * 5)
    with raises_naming(RolloutServerError, "0.5 nats", 0.25):
        synced.generate(PROMPTS, 2, sampling())


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"base_urls": []}, ["base_urls", "[]"]),
        ({"base_urls": ["http://a:1", "http://a:1"]}, ["base_urls", "['http://a:1', 'http://a:1']"]),
        ({"base_urls": "localhost:30000"}, ["http://localhost:30000", "'localhost'"]),
        ({"base_urls": "http://me:secret@host:1"}, ["host", "SGLANG_API_KEY", "SGLANG_ADMIN_API_KEY"]),
        ({"base_urls": "http://a:1", "weight_sync": "tensor"}, ["weight_sync", "'tensor'", "disk", "distributed"]),
        ({"base_urls": "http://a:1", "server_timeout": 0}, ["server_timeout", 0]),
    ],
)
def test_arguments_that_cannot_be_meant(arguments, named):
    with raises_naming(ValueError, *named) as raised:
        SGLangEngine(**arguments)
    assert "secret" not in str(raised.value)


# Keys


def test_keys_come_from_the_environment_and_appear_nowhere(start_double, make_engine, monkeypatch, caplog):
    monkeypatch.setenv("SGLANG_API_KEY", "key-of-all")
    monkeypatch.setenv("SGLANG_ADMIN_API_KEY", "key-of-admins")
    double = start_double(api_key="key-of-all", admin_key="key-of-admins")
    engine = make_engine(double)
    with caplog.at_level(logging.DEBUG):
        engine.sync_weights(make_policy(), 0)
        assert len(engine.generate(PROMPTS, 2, sampling())) == 10
    assert "key-of" not in caplog.text + repr(engine.servers) + repr(vars(engine))


def test_a_wrong_key_is_named_without_it(start_double, make_engine):
    double = start_double(api_key="right")
    with raises_naming(RolloutServerError, double.url, "401: Unauthorized", "SGLANG_API_KEY") as raised:
        make_engine(double, api_key="wrong-key").check_ready(make_policy(), 10, 8)
    assert "wrong-key" not in str(raised.value)


# Faults


PASSING = {
    "dropped": drops,
    "500": answers(500, {"error": {"message": "out of memory"}}),
    "503": answers(503, {"error": "busy"}),
    "slow": takes(0.3),
}


@pytest.mark.parametrize("fault", PASSING)
def test_what_passes_is_asked_again(synced, double, fault):
    expected = synced.generate(PROMPTS, 3, sampling())
    double.next("/generate", PASSING[fault], PASSING[fault])
    assert synced.generate(PROMPTS, 3, sampling()) == expected
    assert len(double.versions) == 1  # the weights were not sent again


@pytest.mark.parametrize("count", [1, 3])
def test_no_completion_is_lost_or_kept_half_when_some_are_aborted(synced, double, count):
    double.next("/generate", aborts(count), aborts(count))
    rollouts = synced.generate(PROMPTS, 3, sampling())
    check_rollouts(rollouts, 15, 259, synced)
    assert_scored_by(make_policy(), PROMPTS, rollouts)
    assert all(rollout.completion_ids[-1] == EOS for rollout in rollouts)


def test_only_what_was_aborted_is_asked_again(synced, double):
    double.next("/generate", aborts(2))
    synced.generate(PROMPTS[:1], 3, sampling())
    assert [request["sampling_params"]["n"] for request in double.requests["/generate"][-2:]] == [3, 2]


def test_a_server_that_keeps_failing_is_given_up(synced, double):
    lose_patience(synced)
    double.next("/generate", *[answers(500, {"error": {"message": "out of memory"}})] * 200)
    with raises_naming(ServerGoneError, double.url, "server_timeout", "0.5 s", "500: out of memory"):
        synced.generate(PROMPTS, 2, sampling())


def test_completions_that_are_always_aborted_are_given_up(synced, double):
    lose_patience(synced)
    double.next("/generate", *[aborts(2)] * 100)
    with raises_naming(ServerGoneError, double.url, "server_timeout", "Aborted by the test"):
        synced.generate(PROMPTS[:1], 2, sampling())


def test_a_server_that_never_answers_is_given_up(make_engine, double):
    double.next("/health", takes(2))
    with raises_naming(ServerGoneError, double.url, "/health", "0.4 s", "server_timeout"):
        make_engine(double, timeout=0.4).check_ready(make_policy(), 10, 8)


def test_an_answer_that_takes_too_long_is_given_up(synced, double):
    synced.servers[0]._http.timeout = 0.5
    double.next("/generate", takes(2))
    with raises_naming(ServerGoneError, double.url, "/generate", "server_timeout"):
        synced.generate(PROMPTS[:1], 2, sampling())


def drop_logprob(items):
    items[0]["meta_info"]["output_token_logprobs"].pop()
    return items


def stop_elsewhere(items):
    items[0]["output_ids"][-1] = items[0]["meta_info"]["output_token_logprobs"][-1][1] = 77
    items[0]["meta_info"]["finish_reason"] = {"type": "stop", "matched": 77}
    return items


BROKEN = {
    "a log-probability is missing": (changes(drop_logprob), [6, "log-probabilities", 7, "tokens"]),
    "stopped elsewhere": (changes(stop_elsewhere), [77, "EOS", "(2,)"]),
    "too few": (changes(lambda items: items[:2]), ["2 completions", 3]),
    "no list": (changes(lambda items: items[0]), ["dict", "list", 3]),
    "another shape": (changes(lambda items: [{"text": "hm"}] * 3), ["KeyError: 'meta_info'"]),
    "error": (answers(400, {"error": "unknown field 'top_p'"}), ["400: unknown field 'top_p'"]),
    "error with a message": (answers(400, {"error": {"message": "too long"}}), ["400: too long"]),
    "object": (
        answers(400, {"object": "error", "message": "3 validation errors"}),
        ["400: 3 validation errors"],
    ),
}


@pytest.mark.parametrize(("fault", "named"), BROKEN.values(), ids=BROKEN)
def test_an_answer_that_cannot_be_trained_on_ends_the_run(synced, double, fault, named):
    double.next("/generate", fault)
    with raises_naming(RolloutServerError, f"{double.url}/generate", *named):
        synced.generate(PROMPTS[:1], 3, sampling())


@pytest.mark.parametrize(
    ("prompts", "named"),
    [
        ([[5, 259]], ["Prompt 0", 5, 259, "vocabulary"]),
        ([[5], [-1, 6]], ["Prompt 1", -1, 6, 259]),
        ([[5], []], ["Prompt 1", "tokens"]),
        ([[5] * 505], ["Prompt 0", 505, 504, "max_prompt_length", "--context-length"]),
    ],
)
def test_prompts_that_would_kill_the_server_are_not_sent(synced, double, prompts, named):
    before = len(double.requests["/generate"])
    with raises_naming(ValueError, *named):
        synced.generate(prompts, 2, sampling())
    assert len(double.requests["/generate"]) == before


def test_greedy_at_another_temperature_is_refused(synced):
    with raises_naming(ValueError, "greedy", "temperature", 1, 0.8):
        synced.generate(PROMPTS, 2, sampling(greedy=True))


def test_needs_weights_first(make_engine, double):
    with raises_naming(RuntimeError, "SGLangEngine", "sync_weights(model, version)"):
        make_engine(double).generate(PROMPTS, 2, sampling())


# Weights that are not those that were sent


@pytest.mark.parametrize(
    "fault",
    [
        changes(lambda answer: answer | {"success": False, "message": "no space"}),
        answers(400, {"success": False, "message": "no space"}),
    ],
    ids=["200", "400"],
)
def test_weights_that_are_not_taken_end_the_run(synced, double, fault):
    double.next("/update_weights_from_disk", fault)
    with raises_naming(RolloutServerError, double.url, "/update_weights_from_disk", "no space"):
        synced.sync_weights(make_policy(), 4)


def test_a_sync_is_repeated_when_the_server_could_not(synced, double):
    double.next("/update_weights_from_disk", drops, answers(503, {"error": "busy"}))
    model = make_policy(seed=5)
    synced.sync_weights(model, 4)
    assert_scored_by(model, PROMPTS, synced.generate(PROMPTS, 2, sampling()))


def test_weights_of_another_run_are_noticed(synced, double):
    double.version = "minimind-hf-other-12"
    with raises_naming(RolloutServerError, double.url, "minimind-hf-other-12"):
        synced.generate(PROMPTS, 2, sampling())


def span_two(items):
    spans = items[1]["meta_info"]["weight_versions"]
    spans.insert(0, {"version": "v7", "start": 0, "end": 1})
    return items


def test_a_completion_partly_from_other_weights_is_noticed(synced, double):
    double.next("/generate", changes(span_two))
    with raises_naming(RolloutServerError, double.url, "v7"):
        synced.generate(PROMPTS[:1], 3, sampling())


def test_a_server_restarted_in_between_gets_the_weights_first(synced, double):
    expected = synced.generate(PROMPTS, 3, sampling())
    double.stop()
    double.start()
    rollouts = synced.generate(PROMPTS, 3, sampling())
    assert rollouts == expected
    assert double.versions == [double.version]


def test_a_server_killed_in_mid_rollout_is_waited_for_and_gets_the_weights_first(synced, double):
    expected = synced.generate(PROMPTS, 3, sampling())

    def die(answer):
        threading.Thread(target=restart_later).start()
        time.sleep(0.3)
        return answer()

    def restart_later():
        double.stop()
        time.sleep(0.5)
        double.start()

    double.next("/generate", die)
    assert synced.generate(PROMPTS, 3, sampling()) == expected
    assert len(double.versions) == 1  # since it started again


def test_a_server_that_stays_away_is_given_up(synced, double):
    lose_patience(synced)
    double.stop()
    with raises_naming(ServerGoneError, double.url, "0.5 s", "server_timeout"):
        synced.generate(PROMPTS, 2, sampling())


def test_several_servers_one_of_which_is_restarted(start_double, make_engine):
    doubles = start_double(), start_double()
    engine = make_engine(*doubles)
    engine.sync_weights(make_policy(), 0)
    expected = engine.generate(PROMPTS, 2, sampling())
    doubles[1].stop()
    doubles[1].start()
    assert engine.generate(PROMPTS, 2, sampling()) == expected
    assert [len(double.versions) for double in doubles] == [1, 1]


def test_unfinished_folders_are_never_named(synced, double):
    asked = double.requests["/update_weights_from_disk"]
    assert asked and all(not Path(request["model_path"]).name.endswith(".part") for request in asked)


def test_a_server_of_other_sizes_is_refused_before_the_first_sync(make_engine, double):
    with raises_naming(RolloutServerError, "hidden_size", 32, 64):
        make_engine(double).sync_weights(make_policy(hidden_size=64), version=0)
    assert not double.versions


def test_an_answer_that_was_cut_off_is_asked_for_again(synced, monkeypatch):
    client, cut = synced.servers[0]._http, []
    request = client.request

    def cutting(method, url, **options):
        response = request(method, url, **options)
        if url.endswith("/generate") and len(cut) < 3:
            cut.append(url)
            return httpx.Response(200, content=response.content[:-9], request=response.request)
        return response

    monkeypatch.setattr(client, "request", cutting)
    assert len(synced.generate(PROMPTS, 2, sampling())) == 10 and len(cut) == 3


def test_a_stop_token_that_the_server_left_out_is_named_as_that(synced, double):
    def trimmed(items):
        for item in items:
            meta = item["meta_info"]
            item["output_ids"], meta["output_token_logprobs"] = [5], [[-1.0, 5, None]]
            meta["finish_reason"] = {"type": "stop", "matched": EOS}
        return items

    double.next("/generate", *[changes(trimmed)] * 5)
    with raises_naming(RolloutServerError, "EOS", EOS, 5):
        synced.generate(PROMPTS, 2, sampling())


def test_a_dead_scheduler_is_named(start_double, make_engine):
    double = start_double()
    engine = make_engine(double, timeout=1.0)
    engine.sync_weights(make_policy(), version=0)
    double.next("/generate", *[takes(3.0)] * 5)
    double.next("/health", *[answers(503, {"error": "no scheduler"})] * 9)
    with raises_naming(ServerGoneError, double.url, "/generate", 503):
        engine.generate(PROMPTS[:1], 1, sampling())
