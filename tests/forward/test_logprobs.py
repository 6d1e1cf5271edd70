# SPDX-License-Identifier: Apache-2.0
"""The padded forward against a row alone, and against plain log-softmax."""

import pytest
import torch
from naming import raises_naming
from tiny import PAD, make_llama, make_policy, random_ids

from minimind_hf.forward.introspection import cache_argument, forward_arguments
from minimind_hf.forward.logprobs import completion_scores

TEMPERATURE = 0.8


def padded(rows: list[list[int]], side: str) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, rows))
    fill = [[PAD] * (width - len(row)) for row in rows]
    hole = [[0] * (width - len(row)) for row in rows]
    ones = [[1] * len(row) for row in rows]
    if side == "left":
        return (
            torch.tensor([f + row for f, row in zip(fill, rows, strict=True)]),
            torch.tensor([h + o for h, o in zip(hole, ones, strict=True)]),
        )
    return (
        torch.tensor([row + f for f, row in zip(fill, rows, strict=True)]),
        torch.tensor([o + h for h, o in zip(hole, ones, strict=True)]),
    )


def score(model, prompts, completions, **options):
    return completion_scores(model, *padded(prompts, "left"), *padded(completions, "right"), TEMPERATURE, **options)


@pytest.mark.parametrize("make", [make_policy, make_llama, lambda: make_policy(use_moe=True)], ids="dlm")
def test_a_row_alone_equals_the_row_in_a_padded_batch(make):
    model = make()
    prompts, completions = random_ids(5, seed=1), random_ids(5, seed=2)
    together = score(model, prompts, completions, with_entropy=True)
    for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        alone = score(model, [prompt], [completion], with_entropy=True)
        n = len(completion)
        torch.testing.assert_close(together.logps[i, :n], alone.logps[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(together.entropy[i, :n], alone.entropy[0], atol=1e-5, rtol=0)


def test_gradients_do_not_depend_on_padding():
    prompts, completions = random_ids(4, seed=1), random_ids(4, seed=2)

    def gradient(batches):
        model = make_policy().double()
        for rows in batches:
            scores = score(model, [prompts[i] for i in rows], [completions[i] for i in rows])
            mask = padded([completions[i] for i in rows], "right")[1].bool()
            scores.logps.masked_fill(~mask, 0).sum().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    whole = gradient([range(4)])
    torch.testing.assert_close(gradient([[i] for i in range(4)]), whole, atol=1e-6, rtol=1e-6)


def test_equals_plain_log_softmax_at_the_temperature():
    model = make_policy()
    prompt, completion = [5, 6, 7], [8, 9]
    scores = score(model, [prompt], [completion], with_entropy=True)
    logits = model(torch.tensor([prompt + completion])).logits[0, 2:4] / TEMPERATURE
    logps = logits.log_softmax(-1)
    torch.testing.assert_close(scores.logps[0], logps[[0, 1], completion], atol=1e-6, rtol=0)
    torch.testing.assert_close(scores.entropy[0], -(logps.exp() * logps).sum(-1), atol=1e-5, rtol=0)
    assert scores.logps.requires_grad and not scores.entropy.requires_grad


def test_temperature_divides_the_logits():
    class Constant(torch.nn.Module):
        def forward(self, input_ids, attention_mask=None):
            logits = torch.tensor([2.0, 1.0, 0.0]).expand(*input_ids.shape, 3)
            return type("Output", (), {"logits": logits})

    one = torch.ones(1, 1, dtype=torch.long)
    expected = [-0.31378086333725796, -1.563780863337258, -2.813780863337258]
    for token, logp in enumerate(expected):
        scores = completion_scores(Constant(), one, one, torch.tensor([[token]]), one, TEMPERATURE)
        assert scores.logps.item() == pytest.approx(logp, abs=1e-6)


def test_router_loss_does_not_see_padding():
    model = make_policy(use_moe=True)
    together = score(model, [[5, 6, 7], [5, 6, 7]], [[8, 9], [8, 9]], with_aux_loss=True)
    # The same tokens with padding around them: the lone longer row of padding must not change the loads.
    ids, mask = padded([[5, 6, 7], [5, 6, 7]], "left")
    ids, mask = torch.nn.functional.pad(ids, (4, 0)), torch.nn.functional.pad(mask, (4, 0))
    wide = completion_scores(model, ids, mask, *padded([[8, 9], [8, 9]], "right"), TEMPERATURE, with_aux_loss=True)
    assert together.aux_loss > 0
    torch.testing.assert_close(wide.aux_loss, together.aux_loss, atol=1e-6, rtol=0)


def test_signature_of_wrapped_models():
    model = make_llama()
    wrapped = torch.nn.Module()
    wrapped.module = model
    assert "position_ids" in forward_arguments(wrapped)
    assert cache_argument(wrapped) in ("cache", "past_key_values")
    with raises_naming(ValueError, "Linear.forward", "cache", "past_key_values", "rollout_engine"):
        cache_argument(torch.nn.Linear(1, 1))
