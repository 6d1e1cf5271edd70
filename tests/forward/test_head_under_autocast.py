# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities and entropies under autocast: the model in bfloat16, every reduction of the head in float32."""

import pytest
import torch
from tiny import make_llama, make_policy

from minimind_hf.forward.layouts import choose_layout, score_completions
from minimind_hf.forward.scoring_head import chunked_scores
from minimind_hf.forward.token_batch import made_up_batch

AUTOCAST = [torch.bfloat16, torch.float16]


def logits_of(kind: str) -> torch.Tensor:
    """Rows of 6400 logits: sharp ones (one token at more than 0.999), nearly uniform ones, or both in turn."""
    generator = torch.Generator().manual_seed(0)
    flat = 0.3 * torch.randn(200, 6400, generator=generator)
    sharp = flat.clone()
    sharp[:, 7] = 30.0
    return {"flat": flat, "sharp": sharp, "mixed": torch.where(torch.arange(200)[:, None] % 2 == 0, sharp, flat)}[kind]


def exact(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logps = logits.double().log_softmax(dim=-1)
    return logps.gather(1, targets[:, None]).squeeze(1), -(logps.exp() * logps).sum(dim=-1)


@pytest.mark.parametrize("dtype", AUTOCAST, ids=str)
@pytest.mark.parametrize("kind", ["flat", "sharp", "mixed"])
def test_reductions_are_float32_and_entropies_are_never_below_zero(kind, dtype):
    logits = logits_of(kind)
    targets = torch.arange(len(logits)) % 6400
    leaf = logits.clone().requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        scores = chunked_scores(lambda hidden: hidden, leaf, targets, 1.0, 6400, entropy_gradient=True)
        scores.sum().backward()
    double = logits.double().requires_grad_()
    logps, entropy = exact(double, targets)
    torch.testing.assert_close(scores[:, 0].double(), logps, atol=1e-5, rtol=0)
    torch.testing.assert_close(scores[:, 1].double(), entropy, atol=1e-5, rtol=0)
    assert (scores[:, 1] >= 0).all()
    (logps + entropy).sum().backward()
    torch.testing.assert_close(leaf.grad.double(), double.grad, atol=1e-5, rtol=1e-4)


def test_an_entropy_that_rounds_below_zero_is_zero():
    torch.manual_seed(0)
    logits = torch.randn(512, 6400) + 300  # at these sizes about a quarter of the rows round below 0
    logits[:, 3] = 300 + torch.linspace(12.0, 18.0, 512)
    scores = chunked_scores(lambda hidden: hidden, logits, torch.full((512,), 3), 0.7, 6400)
    assert (scores[:, 1] >= 0).all() and (scores[-64:, 1] < 1e-3).all()


@pytest.mark.parametrize("make", [make_policy, make_llama], ids=["minimind", "llama"])
@pytest.mark.parametrize("layout", ["padded", "shared_prompt"])
def test_the_layouts_reduce_what_the_head_says_in_float32(make, layout):
    model, batch = make(), made_up_batch(259, torch.device("cpu"))
    choose_layout(layout, model, False)
    kept = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: kept.append(output))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        scores = score_completions(model, batch, 1.0, layout, with_entropy=True)
        plain = score_completions(model, batch, 1.0, "padded", with_entropy=True)
    mask = batch.padded()[3].bool()
    logits = kept[-1][:, -(batch.width + 1) : -1].float()
    logps = logits.double().log_softmax(dim=-1)
    entropy = -(logps.exp() * logps).sum(dim=-1)
    torch.testing.assert_close(plain.entropy[mask].double(), entropy[mask], atol=1e-5, rtol=0)
    assert scores.entropy.dtype == scores.logps.dtype == torch.float32
    assert (scores.entropy >= 0).all()
    assert (scores.entropy - plain.entropy)[mask].abs().max() < 0.1  # of the model in bfloat16, not of the head
