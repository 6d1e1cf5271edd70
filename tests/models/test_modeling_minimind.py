# SPDX-License-Identifier: Apache-2.0
"""The MiniMind model: values against an independent reference and golden files, and transformers' contracts."""

import json
import logging

import pytest
import torch
from naming import assert_names, raises_naming
from reference_minimind import reference_minimind
from safetensors.torch import load_file
from transformers.core_model_loading import revert_weight_conversion

from minimind_hf.models import MiniMindConfig, MiniMindForCausalLM, router_load_balancing_loss

YARN_SHORT = {
    "rope_type": "yarn",
    "factor": 16.0,
    "original_max_position_embeddings": 8,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "attention_factor": 1.0,
    "rope_theta": 1e6,
}
KINDS = {
    "dense": {},
    "untied": {"tie_word_embeddings": False},
    "moe_top1": {"use_moe": True},
    "moe_top2": {"use_moe": True, "num_experts_per_tok": 2},
    "moe_top2_raw": {"use_moe": True, "num_experts_per_tok": 2, "norm_topk_prob": False},
    "yarn": {"rope_parameters": YARN_SHORT},
}
kinds = pytest.mark.parametrize("kind", KINDS)


def sample_ids(rows: int = 2, length: int = 12, vocab: int = 96) -> torch.Tensor:
    """Ids over the whole vocabulary, pad id 0 included: it is an ordinary token."""
    ids = torch.randint(0, vocab, (rows, length), generator=torch.Generator().manual_seed(7))
    ids[0, 3] = 0
    return ids


def left_padded(ids: torch.Tensor, pads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch with its last row's first `pads` tokens replaced by padding."""
    padded, mask = ids.clone(), torch.ones_like(ids)
    padded[-1, :pads] = 0
    mask[-1, :pads] = 0
    return padded, mask


def minimind_weights(model, gradients: bool = False) -> dict[str, torch.Tensor]:
    """Parameters (or their gradients) under the names of MiniMind's files."""
    named = {name: parameter.grad if gradients else parameter.detach() for name, parameter in model.named_parameters()}
    return revert_weight_conversion(model, {name: tensor.clone() for name, tensor in named.items()})


def run_reference(model, weights, ids, mask=None):
    config = model.config
    yarn = config.rope_parameters if config.rope_parameters["rope_type"] == "yarn" else None
    return reference_minimind(
        weights,
        ids,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        top_k=config.num_experts_per_tok if config.use_moe else 0,
        renormalise=config.norm_topk_prob,
        yarn=yarn,
        attention_mask=mask,
    )


# Values


@kinds
def test_agrees_with_the_reference(tiny_minimind, kind):
    model, ids = tiny_minimind(**KINDS[kind]), sample_ids()
    padded, mask = left_padded(ids, 5)
    weights = minimind_weights(model)
    expected, expected_aux = run_reference(model, weights, padded, mask)
    output = model(padded, attention_mask=mask, output_router_logits=True)
    real = mask.bool()
    assert expected[real].std() > 0.5  # the comparison is of logits that differ, not of noise
    torch.testing.assert_close(output.logits[real], expected[real], atol=1e-5, rtol=1e-5)
    if model.config.use_moe:
        torch.testing.assert_close(output.aux_loss, expected_aux, atol=1e-5, rtol=1e-5)
    else:
        assert output.aux_loss is None


@kinds
def test_gradients_agree_with_the_reference(tiny_minimind, kind):
    model, ids = tiny_minimind(router_aux_loss_coef=0.1, **KINDS[kind]).train(), sample_ids(length=8)
    model(ids, labels=ids).loss.backward()
    weights = {name: tensor.requires_grad_() for name, tensor in minimind_weights(model).items()}
    logits, aux = run_reference(model, weights, ids)
    labels = ids[:, 1:].reshape(-1)
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels) + 0.1 * aux
    loss.backward()
    found = minimind_weights(model, gradients=True)
    assert found.keys() == weights.keys()
    for name, tensor in weights.items():
        reference = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        torch.testing.assert_close(found[name], reference, atol=1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
    assert weights["model.embed_tokens.weight"].grad[0].abs().max() > 0  # the pad row learns like any other


def load_golden(golden_dir, name):
    folder = golden_dir / "minimind"
    config = MiniMindConfig(**json.loads((folder / "cases.json").read_text())[name]["config"])
    tensors = torch.load(folder / f"{name}.pth", weights_only=True)
    model = MiniMindForCausalLM.from_pretrained(None, config=config, state_dict=tensors, dtype=torch.float32)
    return model.eval(), load_file(folder / f"{name}.safetensors")


@pytest.mark.parametrize("name", ["dense", "dense_yarn", "moe_top1", "moe_top2"])
def test_golden_checkpoints(golden_dir, name):
    model, golden = load_golden(golden_dir, name)
    with torch.no_grad():
        output = model(golden["input_ids"], labels=golden["input_ids"], output_router_logits=True)
        padded = model(golden["padded_input_ids"], attention_mask=golden["padded_attention_mask"])
    torch.testing.assert_close(output.logits, golden["logits"], atol=1e-4, rtol=0)
    real = golden["padded_attention_mask"].bool()
    torch.testing.assert_close(padded.logits[real], golden["padded_logits"][real], atol=1e-4, rtol=0)
    # MiniMind returns the auxiliary loss with its coefficient and the loss without it
    aux_loss = 0.0 if output.aux_loss is None else model.config.router_aux_loss_coef * output.aux_loss.item()
    assert aux_loss == pytest.approx(golden["aux_loss"].item(), abs=1e-8)
    assert output.loss.item() - aux_loss == pytest.approx(golden["loss"].item(), abs=1e-5)


def test_golden_yarn_beyond_pretraining(golden_dir):
    model, golden = load_golden(golden_dir, "dense_yarn")
    with torch.no_grad():
        logits = model(golden["long_input_ids"], logits_to_keep=16).logits
    torch.testing.assert_close(logits, golden["long_logits_last16"], atol=1e-4, rtol=0)


# Router loss


def test_router_loss_by_hand():
    # softmax of [ln 3, 0] is [3/4, 1/4]: tokens 1 and 2 choose expert 0, token 3 chooses expert 1.
    # load = [2/3, 1/3], mean score = [(3/4 + 3/4 + 1/4) / 3, ...] = [7/12, 5/12]
    # 2 * (2/3 * 7/12 + 1/3 * 5/12) = 2 * 19/36 = 19/18
    log3 = torch.tensor(3.0).log()
    logits = torch.stack([log3 * torch.tensor(row) for row in ([1.0, 0.0], [1.0, 0.0], [0.0, 1.0])])
    assert router_load_balancing_loss((logits,), top_k=1).item() == pytest.approx(19 / 18, abs=1e-6)
    assert router_load_balancing_loss((logits, logits), top_k=1).item() == pytest.approx(19 / 9, abs=1e-6)
    # with top-2 of 2 experts each load is 1: 2 * (7/12 + 5/12) = 2
    assert router_load_balancing_loss((logits,), top_k=2).item() == pytest.approx(2.0, abs=1e-6)
    # without the third token: load = [1, 0], mean score = [3/4, 1/4]: 2 * 3/4
    without = router_load_balancing_loss((logits,), top_k=1, token_weights=torch.tensor([1, 1, 0]))
    assert without.item() == pytest.approx(1.5, abs=1e-6)


def test_router_loss_weight_counts_a_token_that_often():
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    repeated = logits.repeat_interleave(torch.tensor([3, 1, 0, 2, 1]), dim=0)
    weighted = router_load_balancing_loss((logits,), 2, torch.tensor([3.0, 1.0, 0.0, 2.0, 1.0]))
    torch.testing.assert_close(weighted, router_load_balancing_loss((repeated,), 2))


def test_router_loss_ignores_nan_in_padding():
    logits = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
    clean = router_load_balancing_loss((logits[1:],), 1)
    logits[0] = torch.nan
    logits.requires_grad_()
    loss = router_load_balancing_loss((logits,), 1, torch.tensor([0, 1, 1, 1]))
    loss.backward()
    torch.testing.assert_close(loss, clean)
    assert logits.grad.isfinite().all() and logits.grad[0].eq(0).all()


def test_router_loss_of_no_tokens_is_zero():
    loss = router_load_balancing_loss((torch.randn(3, 4),), 1, torch.zeros(3))
    assert loss.item() == 0.0


@pytest.mark.parametrize("kind", ["moe_top1", "moe_top2"])
def test_padding_does_not_change_the_router_loss(tiny_minimind, kind):
    model, ids = tiny_minimind(**KINDS[kind]), sample_ids(rows=1)
    alone = model(ids, output_router_logits=True).aux_loss
    padded = torch.cat([torch.full((1, 6), 5), ids], dim=1)
    mask = torch.cat([torch.zeros(1, 6, dtype=torch.long), torch.ones_like(ids)], dim=1)
    both = model(padded, attention_mask=mask, output_router_logits=True).aux_loss
    torch.testing.assert_close(both, alone, atol=1e-6, rtol=1e-6)
    unmasked = model(padded, output_router_logits=True).aux_loss
    assert (unmasked - alone).abs() > 1e-3


def test_token_weights_replace_the_mask(tiny_minimind):
    model, ids = tiny_minimind(**KINDS["moe_top2"]), sample_ids(rows=1)
    weights = torch.ones(ids.shape)
    weights[:, :4] = 3
    output = model(ids, output_router_logits=True, router_token_weights=weights)
    repeats = weights.flatten().long()
    expected = router_load_balancing_loss(
        tuple(logits.repeat_interleave(repeats, dim=0) for logits in output.router_logits), 2
    )
    torch.testing.assert_close(output.aux_loss, expected)


def test_router_loss_refuses_a_mask_that_hides_the_padding(tiny_minimind):
    model, ids = tiny_minimind(**KINDS["moe_top1"]), sample_ids(length=4)
    mask = torch.zeros(2, 1, 4, 4)
    with raises_naming(ValueError, "(2, 1, 4, 4)", "router_token_weights", "output_router_logits=False"):
        model(ids, attention_mask=mask, output_router_logits=True)


def test_router_loss_joins_the_loss_while_training(tiny_minimind):
    model, ids = tiny_minimind(router_aux_loss_coef=0.5, **KINDS["moe_top2"]), sample_ids()
    evaluated = model(ids, labels=ids)
    assert evaluated.aux_loss is None and evaluated.router_logits is None
    trained = model.train()(ids, labels=ids)
    assert len(trained.router_logits) == model.config.num_hidden_layers
    torch.testing.assert_close(trained.loss, evaluated.loss + 0.5 * trained.aux_loss)
    assert model(ids, labels=ids, output_router_logits=False).aux_loss is None


def test_warns_that_the_top1_router_is_blind(tiny_minimind, caplog):
    model, ids = tiny_minimind(router_aux_loss_coef=0.0, **KINDS["moe_top1"]).train(), sample_ids()
    logging.getLogger("transformers").propagate = True
    from minimind_hf.models import modeling_minimind

    modeling_minimind.logger.warning_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            model(ids, labels=ids).loss.backward()
    (said,) = [message for message in caplog.messages if "num_experts_per_tok=1" in message]
    assert_names(said, "norm_topk_prob=True", "router_aux_loss_coef=0.0", "norm_topk_prob=False")
    gates = [layer.mlp.gate.weight.grad for layer in model.model.layers]
    assert max(gate.abs().max().item() for gate in gates) < 1e-6  # the trap itself


# transformers' contracts


@kinds
@pytest.mark.parametrize("implementation", ["sdpa", "flex_attention"])
def test_attention_implementations_agree(tiny_minimind, kind, implementation):
    # flex attention needs heads of at least 16
    sizes = {"hidden_size": 64, **KINDS[kind]}
    eager = tiny_minimind(attn_implementation="eager", **sizes)
    other = tiny_minimind(attn_implementation=implementation, **sizes)
    assert other.config._attn_implementation == implementation
    padded, mask = left_padded(sample_ids(), 5)
    # flex attention compiles itself otherwise, which takes most of a minute and changes nothing here
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        expected = eager(padded, attention_mask=mask).logits
        found = other(padded, attention_mask=mask).logits
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], atol=1e-5, rtol=1e-5)


def test_experts_implementations_agree(tiny_minimind):
    model, ids = tiny_minimind(**KINDS["moe_top2"]), sample_ids()
    results = []
    for implementation in ("eager", "grouped_mm"):
        model.set_experts_implementation(implementation)
        assert model.config._experts_implementation == implementation
        results.append(model(ids).logits)
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)


@kinds
def test_a_row_alone_equals_the_row_in_a_padded_batch(tiny_minimind, kind):
    model = tiny_minimind(**KINDS[kind])
    padded, mask = left_padded(sample_ids(), 5)
    batch = model(padded, attention_mask=mask).logits[-1, 5:]
    alone = model(padded[-1:, 5:]).logits[0]
    torch.testing.assert_close(batch, alone, atol=1e-5, rtol=1e-5)


@kinds
@pytest.mark.parametrize("cache", ["dynamic", "static", None])
def test_generation_with_every_cache(tiny_minimind, kind, cache):
    model = tiny_minimind(**KINDS[kind])
    padded, mask = left_padded(sample_ids(), 5)
    options = {"use_cache": False} if cache is None else {"cache_implementation": cache}
    generated = model.generate(
        padded, attention_mask=mask, max_new_tokens=10, do_sample=False, eos_token_id=None, **options
    )
    ids, real = padded, mask
    for _ in range(10):
        following = model(ids, attention_mask=real).logits[:, -1:].argmax(-1)
        ids, real = torch.cat([ids, following], 1), torch.cat([real, torch.ones_like(following)], 1)
    assert generated.tolist() == ids.tolist()


def test_cached_steps_give_the_same_logits_and_router_loss_of_new_tokens(tiny_minimind):
    model = tiny_minimind(**KINDS["moe_top2"])
    padded, mask = left_padded(sample_ids(), 3)
    whole = model(padded, attention_mask=mask, output_router_logits=True)
    first = model(padded[:, :8], attention_mask=mask[:, :8], use_cache=True)
    rest = model(padded[:, 8:], attention_mask=mask, cache=first.cache, output_router_logits=True)
    torch.testing.assert_close(rest.logits, whole.logits[:, 8:], atol=1e-5, rtol=1e-5)
    tail = tuple(logits.view(2, 12, 4)[:, 8:].reshape(-1, 4) for logits in whole.router_logits)
    torch.testing.assert_close(rest.aux_loss, router_load_balancing_loss(tail, 2), atol=1e-5, rtol=1e-5)


def test_logits_to_keep(tiny_minimind):
    model, ids = tiny_minimind(), sample_ids()
    whole = model(ids).logits
    assert whole.shape == (2, 12, 96)
    torch.testing.assert_close(model(ids, logits_to_keep=3).logits, whole[:, -3:])
    positions = torch.tensor([1, 5])
    torch.testing.assert_close(model(ids, logits_to_keep=positions).logits, whole[:, positions])


@kinds
def test_gradient_checkpointing_gives_the_same_gradients(tiny_minimind, kind):
    gradients = []
    for checkpointing in (False, True):
        model = tiny_minimind(router_aux_loss_coef=0.1, **KINDS[kind]).train()
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": False})
        output = model(sample_ids(), labels=sample_ids(), use_cache=False)
        output.loss.backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    assert gradients[0].keys() == gradients[1].keys()
    for name, expected in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], expected, atol=1e-7, rtol=1e-5)


def test_reentrant_checkpointing_is_refused_where_it_loses_the_router_loss(tiny_minimind):
    model = tiny_minimind(**KINDS["moe_top2"]).train()
    model.enable_input_require_grads()
    model.activation_checkpointing_enable({"use_reentrant": True})
    with raises_naming(ValueError, 'gradient_checkpointing_kwargs={"use_reentrant": False}'):
        model(sample_ids(), labels=sample_ids(), use_cache=False)
    model(sample_ids(), labels=sample_ids(), use_cache=False, output_router_logits=False).loss.backward()


def test_hidden_states_and_attentions_can_be_had(tiny_minimind):
    model = tiny_minimind(attn_implementation="eager")
    output = model(sample_ids(), output_hidden_states=True, output_attentions=True)
    assert len(output.hidden_states) == 3 and len(output.attentions) == 2
    torch.testing.assert_close(model.lm_head(output.hidden_states[-1]), output.logits)


def test_tensor_parallel_plan_covers_every_projection(tiny_minimind):
    plan = tiny_minimind(**KINDS["moe_top2"]).tp_plan
    assert plan["model.layers.*.self_attn.q_proj"] == "colwise"
    assert plan["model.layers.*.self_attn.o_proj"] == "rowwise"
    assert plan["lm_head"] == "colwise_gather_output"
    assert {"model.layers.*.mlp.gate_proj", "model.layers.*.mlp.experts.gate_up_proj"} <= plan.keys()


def test_pad_row_is_initialised_and_trained(tiny_minimind):
    model = tiny_minimind(tie_word_embeddings=False)
    assert model.model.embed_tokens.weight[0].abs().sum() > 0
    model(sample_ids(), labels=sample_ids()).loss.backward()
    assert model.model.embed_tokens.weight.grad[0].abs().sum() > 0
