# SPDX-License-Identifier: Apache-2.0
"""A step of a decoder, the draw in it, and rows that leave need nothing of the device on the host."""

import pytest
import torch
from no_waits import no_waits
from recorded_graphs import RecordedGraphs
from test_torch_engine import POLICIES, engine_for, random_ids, sampling

from minimind_hf.rollout.torch import buckets, fast_weights, truncated
from minimind_hf.rollout.torch import engine as torch_engine
from minimind_hf.rollout.torch.buckets import Buckets
from minimind_hf.rollout.torch.draws import Drawer
from minimind_hf.rollout.torch.fast_decoder import FastDecoder
from minimind_hf.rollout.torch.fast_weights import pack
from minimind_hf.rollout.torch.looks import Look
from minimind_hf.rollout.torch.noise import stream
from minimind_hf.rollout.torch.static_decoder import StaticDecoder

LONGEST = 20


def make_fast(model) -> FastDecoder:
    return FastDecoder(pack(model), max_rows=6, max_groups=3, max_prompt_length=12, max_completion_length=LONGEST)


DECODERS = {
    "fast": make_fast,
    "graph": lambda model: StaticDecoder(model, LONGEST),
    "replayed": lambda model: StaticDecoder(model, LONGEST, Buckets(RecordedGraphs())),
}


@pytest.mark.parametrize("changes", [{}, {"greedy": True}, {"top_k": 5}, {"top_p": 0.9, "min_p": 0.01}], ids=str)
@pytest.mark.parametrize("name", ["minimind", "moe", "qwen2"])
@pytest.mark.parametrize("decoder", DECODERS)
@torch.no_grad()
def test_steps_do_not_wait(decoder, name, changes, monkeypatch):
    for module in (truncated, fast_weights):  # what is done for a CPU alone is left out
        monkeypatch.setattr(module, "_looks_are_free", lambda tensor: False)
    monkeypatch.setattr(buckets, "FIRST_COLUMNS", 4)
    monkeypatch.setattr(buckets, "COLUMNS_STEP", 4)
    model, params = POLICIES[name](), sampling(**changes)
    if name == "moe":
        model.set_experts_implementation("batched_mm")
    drawn = {}
    for watched in (False, True):
        made = DECODERS[decoder](model)
        logits = made.prefill(random_ids(3))
        made.start_rows([0, 0, 1, 2, 2])
        with no_waits() if watched else torch.no_grad():
            drawn[watched] = decoded(made, logits[torch.tensor([0, 0, 1, 2, 2])], params)
    for expected, found in zip(drawn[False], drawn[True], strict=True):
        assert expected.tolist() == found.tolist()


def decoded(decoder, logits, params) -> list[torch.Tensor]:
    """Draws a few tokens, while rows leave the batch."""
    draw, rows, found = Drawer(params, decoder.device), [0, 1, 2, 3, 4], []
    draw.place((stream(1, row), 0) for row in rows)
    drawn = draw(logits)
    for step in range(12):
        found.append(drawn.token_ids)
        token_ids = drawn.token_ids
        if step in (4, 7):
            staying = [0, 4, 2] if step == 4 else [2]
            decoder.reorder(staying)
            rows = [rows[row] for row in staying]
            token_ids = token_ids[torch.tensor(staying)]
            draw.place((stream(1, row), step + 1) for row in rows)
        drawn = decoder.step_and_draw(token_ids, draw)
    return found


@pytest.mark.parametrize("changes", [{}, {"top_p": 0.9}], ids=str)
@pytest.mark.parametrize("path", ["graph", "fast", "general"])
def test_a_rollout_waits_only_where_it_looks(path, changes, monkeypatch):
    for module in (truncated, fast_weights):
        monkeypatch.setattr(module, "_looks_are_free", lambda tensor: False)
    monkeypatch.setattr(torch_engine, "pace", lambda device, drafts: {"block_size": 3, "blocks_ahead": 1})
    monkeypatch.setattr(Look, "is_there", lambda self: False)
    model, params = POLICIES["minimind"](), sampling(max_completion_length=20, eos_token_ids=range(3, 30), **changes)
    engine = engine_for(model, path=path, max_batch_rows=6)
    engine._graphs = RecordedGraphs
    expected = engine.generate(random_ids(4), 3, params)
    # transformers looks whether a batch has padding: at prompts, and in each step of the general path.
    with no_waits(("looks.py", "masking_utils.py")):
        found = engine.generate(random_ids(4), 3, params)
    assert [each.completion_ids for each in found] == [each.completion_ids for each in expected]
