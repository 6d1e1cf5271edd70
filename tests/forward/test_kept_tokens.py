# SPDX-License-Identifier: Apache-2.0
"""The sets of truncated sampling: how they are stored, and scoring over them in every layout, chunked or not."""

import numpy as np
import pytest
import torch
from test_layouts import MODELS, even_batch, ragged_batch
from test_scored import exact, gradients, masks_of
from tiny import make_policy

from minimind_hf.forward import block_attention, scoring_head
from minimind_hf.forward.kept_tokens import KeptTokens, joined, packed
from minimind_hf.forward.layouts import choose_layout, score_completions

TEMPERATURE = 0.8
VOCAB = 259


def as_bits(ids, vocab=VOCAB):
    flags = np.zeros(vocab, dtype=np.uint8)
    flags[list(ids)] = 1
    return np.packbits(flags, bitorder="little")


def random_sets(completion, seed):
    """For each token a set that has it: some as ids, some as bits, some that are only itself, some not cut at all."""
    rng, found = np.random.default_rng(seed), []
    for place, token in enumerate(completion):
        size = [1, 5, 40, 200][(place + seed) % 4]
        ids = np.unique(np.append(rng.choice(VOCAB, size - 1, replace=False), token)).astype(np.int32)
        found.append(as_bits(ids) if size > 5 else ids)
    if len(found) > 2:
        found[2] = np.empty(0, np.int32)
    return found


def members(one):
    if one.dtype == np.uint8:
        return np.unpackbits(one, bitorder="little")[:VOCAB].nonzero()[0]
    return one if len(one) else np.arange(VOCAB)


def with_sets(batch):
    sets = [random_sets(ids, row) for row, ids in enumerate(batch.completion_ids)]
    batch.kept = [KeptTokens.of(of_row) for of_row in sets]
    return batch, sets


def dense(model, batch, sets):
    """log_softmax of masked logits, each row alone; 0 at tokens that are not scored."""
    logps = torch.zeros(len(batch), batch.width, dtype=torch.float64)
    entropy = torch.zeros_like(logps)
    for row, (prompt, completion) in enumerate(zip(batch.prompt_ids, batch.completion_ids, strict=True)):
        logits = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1] / TEMPERATURE
        for place in batch.scored_places(row):
            ids = torch.tensor(members(sets[row][place]).astype(np.int64))
            over = logits[place, ids].log_softmax(dim=0)
            logps[row, place] = over[(ids == completion[place]).nonzero().item()]
            entropy[row, place] = -(over.exp() * over).sum()
    return logps, entropy


def real(batch, values):
    """Without what stands at padding."""
    return torch.cat([row[: len(ids)] for row, ids in zip(values, batch.completion_ids, strict=True)])


@pytest.mark.parametrize("masked", [False, True], ids=["all scored", "some scored"])
@pytest.mark.parametrize("small", [False, True], ids=["fused", "in blocks and chunks"])
@pytest.mark.parametrize("layout", ["shared_prompt", "padded", "unpadded"])
@pytest.mark.parametrize("name", ["minimind", "llama", "lora", "checkpointed"])
def test_every_layout_equals_the_dense_reference(name, layout, small, masked, monkeypatch):
    if small:
        monkeypatch.setattr(block_attention, "LONG_CONTEXT", 0)
        monkeypatch.setattr(scoring_head, "LOGITS_PER_CHUNK", 3 * VOCAB)
        monkeypatch.setattr(scoring_head, "ROWS_PER_TILE", 2)
    model = exact(MODELS[name]().double())
    if layout == "shared_prompt":
        assert choose_layout(layout, model, False) == (layout, None)
    batch, sets = with_sets(ragged_batch())
    if masked:
        batch.scored = masks_of(batch)
    scores = score_completions(model, batch, TEMPERATURE, layout, with_entropy=True, entropy_gradient=True)
    logps, entropy = dense(model, batch, sets)
    for own, expected in ((scores.logps, logps), (scores.entropy, entropy)):
        torch.testing.assert_close(real(batch, own), real(batch, expected), atol=1e-9, rtol=0)
    found = gradients(model, real(batch, scores.logps) + 0.3 * real(batch, scores.entropy).sin())
    wanted = gradients(model, real(batch, logps) + 0.3 * real(batch, entropy).sin())
    for own, expected in zip(found, wanted, strict=True):
        if own is None:  # no scored token depends on it in one of them
            assert expected is None or not expected.any()
        else:
            torch.testing.assert_close(own, expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("layout", ["shared_prompt", "padded"])
def test_a_set_of_everything_changes_nothing(layout):
    model = make_policy()
    choose_layout("shared_prompt", model, False)
    batch = even_batch()
    expected = score_completions(model, batch, TEMPERATURE, layout, with_entropy=True)
    for one in (np.empty(0, np.int32), np.arange(VOCAB), as_bits(range(VOCAB))):
        batch.kept = [KeptTokens.of([one] * len(ids)) for ids in batch.completion_ids]
        scores = score_completions(model, batch, TEMPERATURE, layout, with_entropy=True)
        assert torch.equal(scores.logps, expected.logps) and torch.equal(scores.entropy, expected.entropy)


@pytest.mark.parametrize("layout", ["shared_prompt", "padded"])
def test_a_set_of_one_token_has_no_gradient(layout):
    model = make_policy()
    choose_layout("shared_prompt", model, False)
    batch = even_batch()
    batch.kept = [KeptTokens.of([np.array([token]) for token in ids]) for ids in batch.completion_ids]
    scores = score_completions(model, batch, TEMPERATURE, layout, with_entropy=True, entropy_gradient=True)
    assert not scores.logps.any() and not scores.entropy.any()
    (scores.logps + scores.entropy).sum().backward()
    assert not any(parameter.grad.any() for parameter in model.parameters())


def test_sets_are_cut_taken_split_and_joined():
    sets = [np.array([3, 1]), as_bits([0, 258]), np.empty(0, np.int32), np.array([7]), as_bits([9])]
    kept = KeptTokens.of(sets)

    def found(some):
        return [row.logical_not().nonzero().squeeze(1).tolist() for row in some.cut(VOCAB, torch.device("cpu"))]

    everything = list(range(VOCAB))
    assert found(kept) == [[1, 3], [0, 258], everything, [7], [9]]
    assert kept.take(range(5)) is kept
    assert found(kept.take([1, 3])) == [[0, 258], [7]] and found(kept.take([])) == []
    assert [found(piece) for piece in kept.split(2)] == [[[1, 3], [0, 258]], [everything, [7]], [[9]]]
    assert found(joined([kept.take([4]), kept.padded(6).take([0, 5])])) == [[9], [1, 3], everything]
    assert found(KeptTokens.from_state(kept.state())) == found(kept)
    assert kept.holds(np.array([1, 258, 5, 8, 9])).tolist() == [True, True, False, False, True]
    assert kept.ids.nbytes + kept.bits.nbytes == 3 * 4 + 2 * 33
    flags = torch.rand(4, VOCAB) < 0.5
    assert packed(flags).numpy().tolist() == [as_bits(row.nonzero().squeeze(1).tolist()).tolist() for row in flags]
