# SPDX-License-Identifier: Apache-2.0
"""Episodes in the in-process engine, by all of its paths, against one forward over the whole and against rounds."""

import os
import signal
import threading
import time

import pytest
import torch
from naming import raises_naming
from sessions import FixedSession, assert_episode_logprobs, assert_is_what_was_asked, sessions_for
from tiny import SHAPE, make_llama, make_policy, random_ids
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from minimind_hf.rollout import SamplingParams, TorchEngine, check_episodes, play_in_rounds
from minimind_hf.rollout.observers import Observers
from minimind_hf.rollout.torch import engine as torch_engine
from minimind_hf.rollout.torch import fast_decoder, fast_runs
from minimind_hf.rollout.torch.sessions import LESS_PATIENCE, PATIENCE

ENDS = tuple(range(2, 40))  # likely enough that most turns end


def make_gpt2():
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=259, n_embd=32, n_layer=2, n_head=4, n_positions=128)).eval()


def make_qwen2(**config):
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**SHAPE | config)).eval()


POLICIES = {
    "minimind": lambda: make_policy(scale=2.0),
    "moe": lambda: make_policy(scale=2.0, use_moe=True),
    "yarn": lambda: make_policy(scale=2.0, inference_rope_scaling=True),
    "llama": lambda: make_llama(scale=2.0),
    "qwen2": make_qwen2,
    "gpt2": make_gpt2,
}
EACH = [(name, path) for name in POLICIES for path in ("fast", "general", "graph") if (name, path) != ("gpt2", "fast")]
PATHS = ("fast", "general", "graph")


def sampling(**changes) -> SamplingParams:
    settings = {"max_completion_length": 60, "temperature": 0.8, "eos_token_ids": ENDS, "max_turn_length": 20}
    return SamplingParams(**settings | changes)


def engine_for(model, **kwargs) -> TorchEngine:
    engine = TorchEngine(**kwargs)
    engine.sync_weights(model, version=7)
    return engine


def ids_of(rollouts):
    return [rollout.completion_ids for rollout in rollouts]


@pytest.mark.parametrize("max_batch_rows", [3, 64])
@pytest.mark.parametrize(("name", "path"), EACH)
def test_logprobs_of_all_turns_are_those_of_one_forward(name, path, max_batch_rows):
    model, sessions = POLICIES[name](), sessions_for(random_ids(4), 3)
    rollouts = engine_for(model, path=path, max_batch_rows=max_batch_rows).converse(sessions, sampling())
    check_episodes(rollouts, 12, 259, TorchEngine(), sampling())
    assert_episode_logprobs(model, sessions, rollouts, 0.8, atol=1e-5, rtol=0)
    for session, rollout in zip(sessions, rollouts, strict=True):
        assert_is_what_was_asked(session, rollout)
        assert rollout.weights_version == 7
    assert {len(rollout.turns) for rollout in rollouts} >= {1, 2, 3}


@pytest.mark.parametrize("path", PATHS)
def test_greedy_episodes_are_those_of_rounds(path):
    model, prompts = make_policy(), random_ids(8)
    params = sampling(greedy=True, eos_token_ids=tuple(range(2, 100)))
    engine = engine_for(model, path=path, max_batch_rows=4)
    sessions, by_rounds = sessions_for(prompts, 2), sessions_for(prompts, 2)
    rollouts, expected = engine.converse(sessions, params), play_in_rounds(engine, by_rounds, params)
    assert [session.asked for session in sessions] == [session.asked for session in by_rounds]
    for rollout, other in zip(rollouts, expected, strict=True):
        assert rollout.completion_ids == other.completion_ids
        assert (rollout.loss_mask, rollout.finish_reason, 7) == (
            other.loss_mask,
            other.finish_reason,
            other.weights_version,
        )
        torch.testing.assert_close(torch.tensor(rollout.logprobs), torch.tensor(other.logprobs), atol=1e-4, rtol=0)
    assert len({len(rollout.turns) for rollout in rollouts}) > 2


@pytest.mark.parametrize("path", PATHS)
def test_neither_tools_nor_rows_change_what_is_drawn(path, monkeypatch):
    monkeypatch.setattr("minimind_hf.rollout.torch.sessions.PATIENCE", 0.002)
    model, prompts = make_policy(scale=2.0), random_ids(4)
    expected = engine_for(model, path=path).converse(sessions_for(prompts, 4), sampling(seed=3))
    for max_batch_rows in (1, 4, 64):
        engine = engine_for(model, path=path, max_batch_rows=max_batch_rows)
        sessions = sessions_for(prompts, 4, delays=0.01)
        assert ids_of(engine.converse(sessions, sampling(seed=3))) == ids_of(expected)
    assert ids_of(engine.converse(sessions_for(prompts, 4), sampling(seed=4))) != ids_of(expected)


def test_once_an_answer_was_late_the_others_hardly_wait(monkeypatch):
    class Slow(FixedSession):
        def observe(self, ids, finish_reason):
            time.sleep(0.08)
            return super().observe(ids, finish_reason)

    waits = []

    class Watched(Observers):
        def results(self, awaited=(), seconds=0.0):
            if seconds:
                waits.append(seconds)
            return super().results(awaited, seconds)

    monkeypatch.setattr(torch_engine, "Observers", Watched)
    engine, prompts = engine_for(make_policy(scale=2.0)), random_ids(4)
    engine.converse([Slow(each.prompt_ids, each.answers) for each in sessions_for(prompts, 2)], sampling())
    assert len(waits) > 4 and waits[0] == PATIENCE and set(waits[1:]) == {LESS_PATIENCE}
    waits.clear()
    engine.converse(sessions_for(prompts, 2), sampling())
    assert waits[0] == PATIENCE  # in every call anew


@pytest.mark.parametrize("path", PATHS)
def test_episodes_whose_tools_answer_at_once_repeat_to_the_last_bit(path):
    engine, prompts = engine_for(make_policy(scale=2.0), path=path, max_batch_rows=5), random_ids(4)
    first, second = (engine.converse(sessions_for(prompts, 4), sampling()) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("path", PATHS)
def test_an_episode_of_one_turn_is_a_completion(path):
    engine, prompts = engine_for(make_policy(scale=2.0), path=path), random_ids(3)
    params = sampling(max_turn_length=None, seed=5)
    completions = engine.generate(prompts, 2, params)
    episodes = engine.converse([FixedSession(ids) for ids in prompts for _ in range(2)], params)
    assert [(one.completion_ids, one.logprobs, one.finish_reason) for one in episodes] == [
        (one.completion_ids, one.logprobs, one.finish_reason) for one in completions
    ]


@pytest.mark.parametrize("block_size", [2, 5])
@pytest.mark.parametrize("path", PATHS)
def test_looking_seldom_changes_no_episode(path, block_size, monkeypatch):
    model, prompts = make_policy(scale=2.0), random_ids(4)
    engine = engine_for(model, path=path, max_batch_rows=6)
    often = engine.converse(sessions_for(prompts, 3), sampling())
    original = torch_engine.SessionScheduler
    monkeypatch.setattr(
        torch_engine,
        "SessionScheduler",
        lambda *args, **options: original(*args, **options | {"block_size": block_size}),
    )
    seldom = sessions_for(prompts, 3)
    rollouts = engine.converse(seldom, sampling())
    assert ids_of(rollouts) == ids_of(often)
    assert_episode_logprobs(model, seldom, rollouts, 0.8, atol=1e-5, rtol=0)


def test_long_answers_are_computed_in_pieces(monkeypatch):
    monkeypatch.setattr(fast_decoder, "MAX_PREFILL_TOKENS", 10)
    monkeypatch.setattr(fast_runs, "MAX_QUERIES", 3)
    model, sessions = make_policy(scale=2.0), sessions_for(random_ids(4), 3)
    rollouts = engine_for(model, path="fast").converse(sessions, sampling())
    assert_episode_logprobs(model, sessions, rollouts, 0.8, atol=1e-5, rtol=0)


@pytest.mark.parametrize("path", PATHS)
def test_lengths(path):
    engine = engine_for(make_policy(), path=path)
    every = sampling(max_completion_length=6, eos_token_ids=tuple(range(259)))  # every turn is one token
    never = sampling(max_completion_length=6, eos_token_ids=(), max_turn_length=4)
    cases = [
        # answers, params -> tokens, mask, reason, times asked
        ([[7, 7, 7, 7]], every, [1, 0, 0, 0, 0, 1], "stop", 2),
        ([[7, 7, 7, 7, 7]], every, [1], "length", 1),  # the answer leaves no room for a token
        ([[7], [7, 7]], every, [1, 0, 1, 0, 0, 1], "stop", 3),
        ([[7], [7, 7], [7]], every, [1, 0, 1, 0, 0, 1], "length", 3),
        ([[], [7]], every, [1, 1, 0, 1], "stop", 3),  # an empty answer
        ([], every, [1], "stop", 1),
        ([[7]], never, [1, 1, 1, 1], "length", 1),  # a turn that is cut; its answer is ignored
    ]
    for answers, params, mask, reason, asked in cases:
        session = FixedSession([5, 6], answers)
        (rollout,) = engine.converse([session], params)
        assert (rollout.loss_mask, rollout.finish_reason, len(session.asked)) == (mask, reason, asked)
        by_rounds = FixedSession([5, 6], answers)
        (rollout,) = play_in_rounds(engine, [by_rounds], params)
        assert (rollout.loss_mask, rollout.finish_reason, len(by_rounds.asked)) == (mask, reason, asked)


@pytest.mark.parametrize("path", ["fast", "general"])
def test_prompts_and_tokens_are_computed_once(path, monkeypatch):
    computed = []
    name = "FastDecoder" if path == "fast" else "CacheDecoder"
    decoder = getattr(torch_engine, name)

    class Counting(decoder):
        def prefill(self, prompt_ids):
            computed.append(sum(map(len, prompt_ids)))
            return super().prefill(prompt_ids)

        def extend(self, parked, token_ids):
            computed.append(sum(map(len, token_ids)))
            return super().extend(parked, token_ids)

        def step(self, token_ids):
            computed.append(len(token_ids))
            return super().step(token_ids)

    model, prompts = make_policy(scale=2.0), random_ids(3)
    engine = engine_for(model, path=path)
    engine.check_sessions(model)
    monkeypatch.setattr(torch_engine, name, Counting)
    rollouts = engine.converse(sessions_for(prompts, 4), sampling())
    # Of each episode all tokens but the last are needed, to draw the next.
    assert sum(computed) >= sum(map(len, prompts)) + sum(len(one.completion_ids) - 1 for one in rollouts)
    computed.clear()
    engine._playable.add(model)
    engine.converse(sessions_for(prompts, 4), sampling())
    assert sum(computed) == sum(map(len, prompts)) + sum(len(one.completion_ids) - 1 for one in rollouts)


class Failing(FixedSession):
    def observe(self, ids, finish_reason):
        raise LookupError("no such tool")


class Slow(FixedSession):
    def observe(self, ids, finish_reason):
        time.sleep(3)
        return None


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "observe"}


def test_an_error_in_a_session_ends_the_call_at_once():
    engine = engine_for(make_policy(scale=2.0))
    params = sampling(eos_token_ids=tuple(range(259)))
    begin = time.monotonic()
    for play in (engine.converse, lambda *arguments: play_in_rounds(engine, *arguments)):
        with raises_naming(LookupError, "no such tool"):
            play([Slow([5]), Failing([6]), FixedSession([7], [[8]])], params)
    assert time.monotonic() - begin < 2
    for thread in threads():  # they end with their answers
        thread.join(5)
    assert threads() == set()


class Stopped(Exception):
    pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_get_through_while_an_answer_is_waited_for(number):
    def stop(*_):
        raise Stopped

    engine, params = engine_for(make_policy()), sampling(eos_token_ids=tuple(range(259)))
    before = signal.signal(number, stop)
    try:
        for play in (engine.converse, lambda *arguments: play_in_rounds(engine, *arguments)):
            begin = time.monotonic()
            threading.Timer(0.3, os.kill, (os.getpid(), number)).start()
            with pytest.raises(Stopped):
                play([Slow([5])], params)
            assert time.monotonic() - begin < 2
    finally:
        signal.signal(number, before)
    for thread in threads():
        thread.join(5)


def test_what_is_no_answer_is_refused():
    engine, params = engine_for(make_policy()), sampling(eos_token_ids=tuple(range(259)))
    for answer in ("text", [1.5], [-1]):
        with raises_naming(TypeError, "observe", "None"):
            engine.converse([FixedSession([5], [answer])], params)


def test_threads_do_not_pile_up():
    engine, prompts = engine_for(make_policy(scale=2.0)), random_ids(4)
    engine.tool_workers = 3
    most = []

    class Watching(FixedSession):
        def observe(self, ids, finish_reason):
            most.append(len(threads()))
            return super().observe(ids, finish_reason)

    for _ in range(10):
        engine.converse([Watching(ids, [[5], [6]]) for ids in prompts for _ in range(3)], sampling())
        assert threads() == set()
    assert max(most) <= 3
    engine.tool_workers = 0
    with raises_naming(ValueError, "tool_workers", 0, 1):
        engine.converse([FixedSession([5])], sampling())


def test_a_slow_tool_holds_up_nobody_else():
    # The slow session waits once; meanwhile all others play ten turns each.
    answered = threading.Event()

    class Patient(FixedSession):
        def observe(self, ids, finish_reason):
            answered.wait(20)
            return super().observe(ids, finish_reason)

    class Last(FixedSession):
        def observe(self, ids, finish_reason):
            answer = super().observe(ids, finish_reason)
            if answer is None:
                answered.set()
            return answer

    params = sampling(max_completion_length=100, eos_token_ids=tuple(range(259)))
    sessions = [Patient([5, 6], [[9]]), Last([5, 6], [[7]] * 10)]
    rollouts = engine_for(make_policy(), max_batch_rows=1).converse(sessions, params)
    assert [len(rollout.turns) for rollout in rollouts] == [2, 11]


@pytest.mark.parametrize("path", PATHS)
def test_no_sessions_no_episodes(path):
    assert engine_for(make_policy(), path=path).converse([], sampling()) == []
    assert play_in_rounds(engine_for(make_policy()), [], sampling()) == []


def test_needs_weights_first():
    with raises_naming(RuntimeError, "TorchEngine", "sync_weights(model, version)"):
        TorchEngine().converse([FixedSession([5])], sampling())


def test_models_that_cannot_be_continued_are_refused():
    sliding = make_qwen2(use_sliding_window=True, sliding_window=4, max_window_layers=1)
    with raises_naming(ValueError, "Qwen2ForCausalLM", "DynamicSlidingWindowLayer", "rollout_engine='sglang'"):
        TorchEngine().check_sessions(sliding)
    engine, session = engine_for(sliding), FixedSession([5])
    with raises_naming(ValueError, "Qwen2ForCausalLM", "DynamicSlidingWindowLayer"):
        engine.converse([session], sampling())
    assert session.asked == []
    mamba = MambaForCausalLM(
        MambaConfig(vocab_size=259, hidden_size=16, num_hidden_layers=2, state_size=4, use_mambapy=True)
    )
    with raises_naming(ValueError, "MambaForCausalLM", "state", "rollout_engine='sglang'"):
        TorchEngine().check_sessions(mamba)
    for model in (make_policy(), make_gpt2()):
        engine = TorchEngine()
        engine.check_sessions(model)
        assert engine.model is None
