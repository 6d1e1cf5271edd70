# SPDX-License-Identifier: Apache-2.0
"""The entropy as a term of a loss: its gradient in both layouts, chunked or not, against autograd on plain logits."""

import pytest
import torch
from tiny import make_policy

from minimind_hf.forward import scoring_head
from minimind_hf.forward.layouts import choose_layout, score_completions
from minimind_hf.forward.token_batch import made_up_batch

TEMPERATURE = 0.8


def gradient(model) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("rows_per_chunk", [1, 100])
@pytest.mark.parametrize("layout", ["padded", "shared_prompt"])
def test_gradient_of_entropy_and_log_probability_together(monkeypatch, layout, rows_per_chunk):
    monkeypatch.setattr(scoring_head, "LOGITS_PER_CHUNK", 259 * rows_per_chunk)
    batch = made_up_batch(259, torch.device("cpu"))
    prompt_ids, prompt_mask, completion_ids, completion_mask = batch.padded()
    mask = completion_mask.bool()

    plain = make_policy().double()
    ids = torch.cat([prompt_ids, completion_ids], dim=1)
    attention = torch.cat([prompt_mask, completion_mask], dim=1)
    positions = (attention.cumsum(dim=1) - 1).clamp(min=0)
    logits = plain(ids, attention_mask=attention, position_ids=positions).logits[:, 5:-1] / TEMPERATURE
    all_logps = logits.log_softmax(dim=-1)
    entropy = -(all_logps.exp() * all_logps).sum(dim=-1)
    logps = all_logps.gather(2, completion_ids[..., None]).squeeze(2)
    (entropy.sin() + 0.3 * logps)[mask].sum().backward()

    model = make_policy().double()
    assert choose_layout(layout, model, False) == (layout, None)
    scores = score_completions(model, batch, TEMPERATURE, layout, with_entropy=True, entropy_gradient=True)
    # Rotary angles, norms and the softmax of attention are float32 in transformers, which bounds what can be equal.
    torch.testing.assert_close(scores.entropy[mask], entropy[mask], rtol=0, atol=1e-5)
    (scores.entropy.sin() + 0.3 * scores.logps)[mask].sum().backward()
    torch.testing.assert_close(gradient(model), gradient(plain), rtol=1e-4, atol=2e-5)


def test_probabilities_that_underflow_have_a_gradient_of_zero():
    logits = torch.tensor([[0.0, -300.0, -1.0]], requires_grad=True)
    _, entropy = scoring_head._SelectedLogps.apply(logits, torch.tensor([0]), 1.0, True)
    entropy.sum().backward()
    assert logits.grad.isfinite().all() and logits.grad[0, 1] == 0 and logits.grad[0, 2] > 0


@pytest.mark.parametrize("layout", ["padded", "shared_prompt"])
def test_without_being_asked_for_there_is_no_gradient(layout):
    model = make_policy()
    choose_layout(layout, model, False)
    batch = made_up_batch(259, torch.device("cpu"))
    assert not score_completions(model, batch, TEMPERATURE, layout, with_entropy=True).entropy.requires_grad
