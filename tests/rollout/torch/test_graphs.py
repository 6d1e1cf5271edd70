# SPDX-License-Identifier: Apache-2.0
"""Steps that are captured, here as recordings of their operations: kept over rollouts, and never of old weights."""

import copy

import pytest
import torch
from recorded_graphs import RecordedGraphs
from sessions import sessions_for
from test_torch_engine import POLICIES, assert_logprobs_of_model, engine_for, ids_of, make_lora, random_ids, sampling
from tiny import make_policy

from minimind_hf.rollout.torch import buckets, truncated
from minimind_hf.rollout.torch import engine as torch_engine
from minimind_hf.rollout.torch.buckets import columns_for, rows_for
from minimind_hf.rollout.torch.cast_copy import CastCopy
from minimind_hf.rollout.torch.graphs import CudaGraphs
from minimind_hf.rollout.torch.looks import Look
from minimind_hf.rollout.torch.static_decoder import StaticDecoder

PROMPTS = random_ids(5)


def recording(model, **options):
    """An engine on the graph path, and what records its steps."""
    engine, graphs = engine_for(model, path="graph", **options), RecordedGraphs()
    engine._graphs = lambda: graphs
    return engine, graphs


def plain(model, *request, **options):
    return engine_for(model, path="general", **options).generate(*request)


def small_buckets(monkeypatch):
    """Buckets that are full after a few columns."""
    monkeypatch.setattr(buckets, "FIRST_COLUMNS", 4)
    monkeypatch.setattr(buckets, "COLUMNS_STEP", 4)


def as_on_a_device(monkeypatch):
    """Blocks of tokens, which nobody looks at before the next is asked for."""
    monkeypatch.setattr(torch_engine, "pace", lambda device, drafts: {"block_size": 3, "blocks_ahead": 1})
    monkeypatch.setattr(Look, "is_there", lambda self: False)


@pytest.mark.parametrize("changes", [{}, {"greedy": True}], ids=str)
@pytest.mark.parametrize("name", ["minimind", "yarn", "llama", "qwen3", "gpt2"])
def test_replays_draw_what_the_own_forward_draws(name, changes, monkeypatch):
    small_buckets(monkeypatch)
    model, eos = POLICIES[name](), tuple(range(3, 30))  # which end some rows early
    request = (PROMPTS, 3, sampling(max_completion_length=30, eos_token_ids=eos, **changes))
    engine, graphs = recording(model)
    drawn = engine.generate(*request)
    expected = plain(model, *request)
    assert ids_of(drawn) == ids_of(expected)
    assert len({len(ids) for ids in ids_of(drawn)}) > 1
    assert_logprobs_of_model(model, PROMPTS, drawn, 3, 0.8, atol=1e-5, rtol=1e-5)
    assert graphs.captures > 2 and graphs.replays > graphs.captures  # of several sizes, and used again


TRUNCATED = [{"top_k": 5}, {"top_p": 0.9, "min_p": 0.01}, {"top_p": 0.8, "top_k": 30, "greedy": True}]


@pytest.mark.parametrize("changes", TRUNCATED, ids=str)
def test_replays_draw_from_the_same_sets(changes, monkeypatch):
    small_buckets(monkeypatch)
    model, eos = make_policy(scale=2.0), tuple(range(3, 30))
    request = (PROMPTS, 3, sampling(max_completion_length=30, eos_token_ids=eos, **changes))
    expected = plain(model, *request)
    monkeypatch.setattr(truncated, "_looks_are_free", lambda logits: False)  # what is done for a CPU alone
    as_on_a_device(monkeypatch)
    engine, graphs = recording(model)
    drawn = engine.generate(*request)
    assert ids_of(drawn) == ids_of(expected)
    for one, other in zip(drawn, expected, strict=True):
        assert [each.tolist() for each in one.kept] == [each.tolist() for each in other.kept]
        torch.testing.assert_close(torch.tensor(one.logprobs), torch.tensor(other.logprobs), atol=1e-5, rtol=0)
    assert graphs.replays > graphs.captures > 2


class Further:
    """Asks for another prompt at every third completion that ends."""

    def __init__(self, prompts):
        self.left, self.ended, self.asked = list(prompts), 0, 0

    def finished(self, number, rollout):
        self.ended += 1

    def further(self, waits):
        due = min(self.ended // 3 - self.asked, len(self.left))
        self.asked += due
        return [self.left.pop(0) for _ in range(due)]


@pytest.mark.parametrize("rows", [256, 6])
def test_prompts_that_come_while_others_run(rows, monkeypatch):
    small_buckets(monkeypatch)
    model, eos = make_policy(), tuple(range(3, 60))
    params = sampling(max_completion_length=20, eos_token_ids=eos)
    every = random_ids(9)
    expected = plain(model, every, 3, params)
    as_on_a_device(monkeypatch)
    engine, graphs = recording(model, max_batch_rows=rows)
    drawn = engine.generate(every[:4], 3, params, Further(every[4:]))
    assert ids_of(drawn) == ids_of(expected)
    assert graphs.replays > graphs.captures


def moved(model):
    """Puts a weight elsewhere."""
    parameter = next(iter(model.parameters()))
    parameter.data = parameter.data.clone()


def test_graphs_are_kept_while_weights_change_in_place():
    model = make_policy()
    engine, graphs = recording(model)
    request = (PROMPTS, 3, sampling(max_completion_length=12))
    engine.generate(*request)
    captures = graphs.captures
    assert captures > 0
    for _ in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        assert ids_of(engine.generate(*request)) == ids_of(plain(model, *request))
        assert graphs.captures == captures
    moved(model)
    with torch.no_grad():
        next(iter(model.parameters())).mul_(-1.0)
    assert ids_of(engine.generate(*request)) == ids_of(plain(model, *request))
    assert graphs.captures > captures  # a replay would read the weight where it was


def test_a_recording_of_weights_that_moved_is_old(monkeypatch):
    # What the test before relies on: without the look at addresses, old weights are decoded with.
    monkeypatch.setattr(buckets, "addresses_of", lambda module: ())
    model = make_policy()
    engine, _ = recording(model)
    request = (PROMPTS, 3, sampling(max_completion_length=12, greedy=True))
    engine.generate(*request)
    moved(model)
    with torch.no_grad():
        next(iter(model.parameters())).mul_(-1.0)
    assert ids_of(engine.generate(*request)) != ids_of(plain(model, *request))


def test_larger_requests_make_the_memory_move():
    model = make_policy()
    engine, graphs = recording(model)
    for prompts, count, length in ((PROMPTS[:1], 2, 6), (PROMPTS, 4, 6), (PROMPTS, 2, 300), (PROMPTS[:1], 2, 6)):
        request = (prompts, count, sampling(max_completion_length=length, eos_token_ids=tuple(range(40))))
        assert ids_of(engine.generate(*request)) == ids_of(plain(model, *request))


def test_how_tokens_are_drawn_is_part_of_a_graph():
    model = make_policy(scale=2.0)
    engine, graphs = recording(model)
    for params in (sampling(), sampling(temperature=2.0), sampling(greedy=True), sampling(seed=9), sampling()):
        request = (PROMPTS, 2, params)
        assert ids_of(engine.generate(*request)) == ids_of(plain(model, *request))
    seen = graphs.captures
    engine.generate(PROMPTS, 2, sampling(seed=10, eos_token_ids=(5,)))
    assert graphs.captures == seen  # seeds and ends are not


def test_adapters_that_are_switched_off_are_noticed():
    model = make_lora()
    engine, _ = recording(model)
    request = (PROMPTS, 2, sampling(greedy=True))
    adapted = ids_of(engine.generate(*request))
    assert adapted == ids_of(plain(model, *request))
    with model.disable_adapter():
        base = ids_of(engine.generate(*request))
        assert base == ids_of(plain(model, *request)) != adapted
    assert ids_of(engine.generate(*request)) == adapted


@pytest.mark.parametrize("looks_late", [False, True])
def test_episodes(looks_late, monkeypatch):
    model = make_policy()
    params = sampling(max_completion_length=60, max_turn_length=12, eos_token_ids=tuple(range(3, 60)))
    expected = engine_for(model, path="general").converse(sessions_for(PROMPTS, 2), params)
    if looks_late:
        as_on_a_device(monkeypatch)
    engine, graphs = recording(model)
    played = engine.converse(sessions_for(PROMPTS, 2), params)
    assert ids_of(played) == ids_of(expected)
    assert graphs.replays > 0


def test_speculation_takes_the_plain_path_on_a_gpu():
    for speculation, path in ((None, "graph"), ("self", "general")):
        engine = engine_for(make_policy(), speculation=speculation)
        engine._device = lambda: torch.device("cuda")
        assert engine._path(8) == path


@pytest.mark.gpu
@pytest.mark.parametrize("changes", [{}, {"top_k": 5}, {"top_p": 0.9}], ids=str)
def test_on_a_gpu_graphs_are_kept_and_steps_do_not_wait(changes, monkeypatch):
    model = make_policy(hidden_size=128).to("cuda")
    engine, captures = engine_for(model, path="graph"), []
    capture, step = CudaGraphs.capture, StaticDecoder.step_and_draw
    monkeypatch.setattr(CudaGraphs, "capture", lambda self, work: captures.append(work) or capture(self, work))
    request = (PROMPTS, 3, sampling(max_completion_length=40, **changes))
    engine.generate(*request)
    first = len(captures)

    def strict(self, *given):
        torch.cuda.set_sync_debug_mode("error")
        try:
            return step(self, *given)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(StaticDecoder, "step_and_draw", strict)
    for _ in range(2):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        pairs = zip(ids_of(engine.generate(*request)), ids_of(plain(model, *request)), strict=True)
        assert sum(mine != other for mine, other in pairs) <= 1  # a number may lie between two tokens
    assert len(captures) == first > 0


# Copies in bfloat16


def test_a_copy_follows_the_model_in_place():
    model = make_policy(inference_rope_scaling=True)
    made = CastCopy(model, torch.bfloat16)
    addresses = buckets.addresses_of(made.module)
    frequencies = dict(made.module.named_buffers())
    assert frequencies and all(each.dtype == torch.float32 for each in frequencies.values())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    before = copy.deepcopy(model.state_dict())
    made.follow(model)
    assert buckets.addresses_of(made.module) == addresses
    for (name, own), other in zip(made.module.named_parameters(), model.parameters(), strict=True):
        assert own.dtype == torch.bfloat16 and not own.requires_grad, name
        assert torch.equal(own, other.bfloat16())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert made.fits(model, torch.bfloat16) and not made.fits(model, torch.float16)
    assert not made.fits(make_policy(hidden_size=16), torch.bfloat16)


def test_rollouts_in_bfloat16_keep_graphs_and_follow_the_weights():
    model = make_policy(scale=2.0)
    engine, graphs = recording(model, dtype="bfloat16")
    captures = 0
    for _ in range(3):
        drawn = engine.generate(PROMPTS, 3, sampling())
        assert_logprobs_of_model(model, PROMPTS, drawn, 3, 0.8, atol=0.15, rtol=0)
        captures = captures or graphs.captures
        assert graphs.captures == captures > 0
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.data = parameter * -1.0  # the model's weights may move: those of the copy do not


# Sizes


def test_rows_and_columns_of_buckets():
    assert [rows_for(count) for count in (1, 2, 3, 8, 9)] == [1, 2, 4, 8, 16]
    assert [columns_for(used, 1100) for used in (1, 128, 129, 700, 1100)] == [128, 128, 256, 1024, 1280]
    assert columns_for(5, 10) == 128 and columns_for(300, 310) == 512


def test_memory_is_given_back_where_it_is_scarce(monkeypatch):
    model = make_policy()
    engine, _ = recording(model)
    engine.generate(PROMPTS, 2, sampling())
    held = sum(flat.nbytes for pair in engine.buckets._memory for flat in pair)
    for total, kept in ((held * 8, True), (held * 8 - 8, False)):
        engine.generate(PROMPTS, 2, sampling())
        properties = type("Properties", (), {"total_memory": total})
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, found=properties: found)
        engine.buckets.settle(torch.device("cuda"))
        assert bool(engine.buckets._memory) == kept
