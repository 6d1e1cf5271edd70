# SPDX-License-Identifier: Apache-2.0
"""How many logits the head holds at a time: a constant on a CPU, a share of what is free on a device."""

import pytest
import torch
from test_layouts import gradients, ragged_batch
from tiny import make_policy

from minimind_hf.forward import scoring_head
from minimind_hf.forward.layouts import choose_layout
from minimind_hf.forward.scoring_head import BYTES_PER_LOGIT, LOGITS_PER_CHUNK, MOST_LOGITS, logits_per_chunk

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
GIB = 2**30


@pytest.fixture
def free(monkeypatch):
    def set_free(amount):
        monkeypatch.setattr(scoring_head, "free_bytes", lambda device: amount)

    return set_free


def test_on_a_cpu_it_is_what_the_caches_hold():
    assert logits_per_chunk(CPU) == LOGITS_PER_CHUNK


@pytest.mark.parametrize("gib", [0.01, 0.5, 2, 8, 24, 80, 140])
def test_on_a_device_it_fits_into_a_quarter_of_what_is_free(free, gib):
    free(int(gib * GIB))
    logits = logits_per_chunk(CUDA)
    assert logits.bit_count() == 1 and LOGITS_PER_CHUNK <= logits <= MOST_LOGITS
    if logits > LOGITS_PER_CHUNK:
        assert logits * BYTES_PER_LOGIT <= gib * GIB / 4
    if logits < MOST_LOGITS:
        assert 2 * logits * BYTES_PER_LOGIT > gib * GIB / 4


def test_free_is_what_nobody_has_and_what_torch_does_not_use(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 20 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 12 * GIB)
    assert scoring_head.free_bytes(CUDA) == 11 * GIB
    assert scoring_head.free_bytes(CPU) is None


@pytest.mark.parametrize("logits", [259, 5 * 259, 2**40])
def test_the_head_computes_that_many_at_a_time_with_the_same_result(monkeypatch, logits):
    model, batch = make_policy(), ragged_batch()
    choose_layout("shared_prompt", model, False)
    whole, expected, _ = gradients(model, batch, "shared_prompt")
    monkeypatch.setattr(scoring_head, "logits_per_chunk", lambda device: logits)
    calls, compute = [], scoring_head._chunk_logps
    monkeypatch.setattr(scoring_head, "_chunk_logps", lambda *given: calls.append(len(given[1])) or compute(*given))
    chunked, found, mask = gradients(model, batch, "shared_prompt")
    scored = int(mask.sum())
    # Each is computed again in the backward pass, unless there is only one.
    assert len(calls) == -(-scored // (logits // 259)) * (2 if logits < 2**40 else 1)
    torch.testing.assert_close(chunked.logps, whole.logps, atol=1e-6, rtol=0)
    for parameter, gradient in expected.items():
        torch.testing.assert_close(found[parameter], gradient, atol=1e-5, rtol=1e-5)
