# SPDX-License-Identifier: Apache-2.0
"""The last layer leaves out the tokens that nothing reads. That its results are the same: test_scored.py."""

import copy
import pickle

import pytest
import torch
from test_layouts import MODELS, batch_of
from tiny import make_policy, random_ids

from minimind_hf.forward import block_attention
from minimind_hf.forward.last_layer import attach_last_layer, detach_last_layer, takes_read_tokens
from minimind_hf.forward.layouts import choose_layout, score_completions
from minimind_hf.forward.shared_prompt import pack

PRUNED = {"minimind", "moe", "yarn", "llama", "qwen3", "qwen2 (biases)", "lora", "checkpointed", "half frozen"}


def episodes():
    """Two completions of 8 and 5 tokens behind a prompt of 6, the first with an answer in its middle."""
    batch = batch_of([[5, 6, 7, 8, 9, 10]], [0, 0], [[*range(20, 28)], [*range(30, 35)]])
    batch.scored = [[1, 1, 0, 0, 0, 0, 1, 1], [1, 1, 1, 1, 1]]
    return batch


@pytest.fixture
def long_ones(monkeypatch):
    monkeypatch.setattr(block_attention, "LONG_CONTEXT", 0)
    monkeypatch.setattr(block_attention, "LONG_SEQUENCE", 4)


@pytest.fixture
def rows_seen(monkeypatch):
    """Tokens that each query projection and feed-forward got."""
    seen = {}

    def watch(model):
        for number, layer in enumerate(model.model.layers):
            for name, module in {
                "query": layer.self_attn.q_proj,
                "key": layer.self_attn.k_proj,
                "mlp": layer.mlp,
            }.items():
                module.register_forward_hook(
                    lambda module, args, output, at=(number, name): seen.__setitem__(at, args[0].shape[1])
                )
        return seen

    return watch


@pytest.mark.usefixtures("long_ones")
def test_what_it_computes(rows_seen):
    model = make_policy()
    choose_layout("shared_prompt", model, False)
    seen = rows_seen(model)
    score_completions(model, episodes(), 1.0, "shared_prompt")
    # Row: 6 + 7 + 4 tokens. The prompt's last token predicts both first ones; tokens 0, 5 and 6 of the first
    # completion and 0 to 3 of the second predict the others.
    assert seen == {
        (0, "query"): 17,
        (0, "key"): 17,
        (0, "mlp"): 17,
        (1, "query"): 1 + 3 + 4,
        (1, "key"): 17,
        (1, "mlp"): 1 + 3 + 4,
    }


def test_short_contexts_and_router_losses_compute_all(rows_seen, monkeypatch):
    model = make_policy(use_moe=True, num_experts_per_tok=2)
    choose_layout("shared_prompt", model, True)
    seen = rows_seen(model)
    score_completions(model, episodes(), 1.0, "shared_prompt")
    assert set(seen.values()) == {17}
    monkeypatch.setattr(block_attention, "LONG_CONTEXT", 0)
    score_completions(model, episodes(), 1.0, "shared_prompt", with_aux_loss=True)
    assert set(seen.values()) == {6 + 8 + 5}


@pytest.mark.parametrize("name", MODELS)
def test_known_layers(name):
    model = MODELS[name]()
    choose_layout("shared_prompt", model, False)
    assert takes_read_tokens(model) == (name in PRUNED)


def test_dropout_in_attention_computes_all():
    model = make_policy(attention_dropout=0.1)
    attach_last_layer(model)
    assert takes_read_tokens(model.eval()) and not takes_read_tokens(model.train())


@pytest.mark.usefixtures("long_ones")
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_computes_with_its_own_weights(copied):
    model = make_policy()
    choose_layout("shared_prompt", model, False)
    expected = score_completions(model, episodes(), 1.0, "shared_prompt").logps
    twin = copied(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert takes_read_tokens(twin)
    assert torch.equal(score_completions(twin, episodes(), 1.0, "shared_prompt").logps, expected)


def test_detaching_leaves_the_layer_as_it_was():
    model = make_policy()
    attach_last_layer(model)
    detach_last_layer(model)
    detach_last_layer(model)
    assert not takes_read_tokens(model) and "forward" not in vars(model.model.layers[-1])


def test_a_layer_that_somebody_else_has_changed_stays_so():
    model = make_policy()
    layer = model.model.layers[-1]
    own = layer.forward
    layer.forward = lambda *args, **kwargs: own(*args, **kwargs)
    changed = layer.forward
    attach_last_layer(model)
    detach_last_layer(model)
    assert layer.forward is changed and not takes_read_tokens(model)


def test_tokens_that_are_read(monkeypatch):
    batch = batch_of(
        random_ids(2, seed=3, low=5, high=5), [0, 0, 0, 1], [[*range(9)], [*range(3)], [*range(7)], [1, 2]]
    )
    batch.scored = [[0, 0, 1, 1, 0, 0, 1, 0, 0], [0, 0, 1], [0] * 7, [1, 0]]
    monkeypatch.setattr(block_attention, "LONG_SEQUENCE", 4)
    packed = pack(batch)
    # The first group has a long completion at 5 to 10, and a short one at 11 and 12; the second group a prompt only.
    assert packed.read.tolist() == [6, 7, 10, 11, 12, 17]
    assert packed.predictors.tolist() == [6, 7, 10, 12, 17]
    assert packed.read_predictors.tolist() == [0, 1, 2, 4, 5]
    assert [list(map(list, group)) for group in packed.layout.read] == [[[], [1, 2, 5], [0, 1]], [[4]]]
