# SPDX-License-Identifier: Apache-2.0
"""Logits at scored tokens only: with observations within completions, every layout equals a dense reference."""

from functools import partial

import pytest
import torch
from test_layouts import MODELS, batch_of, ragged_batch
from tiny import make_policy, random_ids
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForTokenClassification

from minimind_hf.forward import block_attention, long_attention, scoring_head
from minimind_hf.forward.layouts import choose_layout, score_completions
from minimind_hf.forward.shared_prompt import attach, pack
from minimind_hf.forward.values import completion_values

TEMPERATURE = 0.8


def masks_of(batch, seed=0):
    """Runs of ones and zeros; the first completion is scored throughout, and one not at all."""
    generator = torch.Generator().manual_seed(seed)
    masks = [(torch.rand(len(ids), generator=generator) < 0.5).long().tolist() for ids in batch.completion_ids]
    masks[0] = [1] * len(masks[0])
    masks[3] = [0] * len(masks[3])
    return masks


def with_masks(batch):
    batch.scored = masks_of(batch)
    return batch


def dense(model, batch):
    """Log-probabilities and entropies of scored tokens from the logits of each row alone, and 0 elsewhere."""
    logps = torch.zeros(len(batch), batch.width, dtype=torch.float64)
    entropy = torch.zeros_like(logps)
    for row, (prompt, completion, mask) in enumerate(
        zip(batch.prompt_ids, batch.completion_ids, batch.scored, strict=True)
    ):
        logits = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        each = torch.log_softmax(logits / TEMPERATURE, dim=-1)
        counts = torch.tensor(mask, dtype=torch.float64)
        chosen = each.gather(1, torch.tensor(completion)[:, None]).squeeze(1)
        logps[row, : len(mask)] = chosen * counts
        entropy[row, : len(mask)] = -(each.exp() * each).sum(dim=1).detach() * counts
    return logps, entropy


def exact(model):
    """Norms in float64: transformers computes them in float32, whatever the dtype of the model."""

    def norm(module, x):
        epsilon = getattr(module, "variance_epsilon", None) or module.eps
        return module.weight * x * (x.square().mean(dim=-1, keepdim=True) + epsilon).rsqrt()

    for module in model.modules():
        if "RMSNorm" in type(module).__name__:
            module.forward = partial(norm, module)
    return model


def gradients(model, logps):
    weights = torch.randn(logps.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    model.zero_grad()
    (logps * weights).sum().backward()
    return [p.grad.clone() if p.grad is not None else None for p in model.parameters() if p.requires_grad]


@pytest.mark.parametrize("sequence", [None, 128, 4], ids=["fused", "in blocks", "in blocks, one by one"])
@pytest.mark.parametrize("layout", ["shared_prompt", "padded", "unpadded"])
@pytest.mark.parametrize("name", ["minimind", "llama", "qwen2 (biases)", "lora", "checkpointed", "half frozen"])
def test_every_layout_equals_the_dense_reference(name, layout, sequence, monkeypatch):
    """In blocks, the last layer leaves out what nothing reads."""
    if sequence is not None:
        monkeypatch.setattr(block_attention, "LONG_CONTEXT", 0)
        monkeypatch.setattr(block_attention, "LONG_SEQUENCE", sequence)
        monkeypatch.setattr(long_attention, "QUERIES_PER_BLOCK", sequence)
        monkeypatch.setattr(scoring_head, "LOGITS_PER_CHUNK", 3 * 259)
    model = exact(MODELS[name]().double())
    if layout == "shared_prompt":
        assert choose_layout(layout, model, False) == (layout, None)
    batch = with_masks(ragged_batch())
    scores = score_completions(model, batch, TEMPERATURE, layout, with_entropy=True)
    logps, entropy = dense(model, batch)
    torch.testing.assert_close(scores.logps, logps, atol=1e-9, rtol=0)
    torch.testing.assert_close(scores.entropy, entropy, atol=1e-9, rtol=0)
    for own, expected in zip(gradients(model, scores.logps), gradients(model, logps), strict=True):
        if own is None:  # no scored token depends on it in one of them
            assert expected is None or not expected.any()
        else:
            torch.testing.assert_close(own, expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("keeps", ["positions", "a number", "nothing"])
def test_a_model_that_keeps_other_logits(keeps):
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=259, n_embd=32, n_layer=2, n_head=4, n_positions=64)

    class Counting(GPT2LMHeadModel):
        def forward(self, input_ids=None, attention_mask=None, position_ids=None, logits_to_keep: int = 0):
            asked.append(logits_to_keep)
            return super().forward(input_ids, attention_mask=attention_mask, position_ids=position_ids)

    class Old(GPT2LMHeadModel):
        def forward(self, input_ids=None, attention_mask=None, position_ids=None):
            return super().forward(input_ids, attention_mask=attention_mask, position_ids=position_ids)

    asked: list = []
    model = {"positions": GPT2LMHeadModel, "a number": Counting, "nothing": Old}[keeps](config).eval().double()
    batch = with_masks(ragged_batch())
    scores = score_completions(model, batch, TEMPERATURE, "padded", with_entropy=True)
    logps, entropy = dense(model, batch)
    torch.testing.assert_close(scores.logps, logps, atol=1e-9, rtol=0)
    torch.testing.assert_close(scores.entropy, entropy, atol=1e-9, rtol=0)
    assert all(isinstance(each, int) for each in asked)


@pytest.mark.parametrize("layout", ["shared_prompt", "padded", "unpadded"])
def test_nothing_scored_still_has_a_graph(layout):
    model = make_policy().double()
    choose_layout("shared_prompt", model, False)
    batch = ragged_batch()
    batch.scored = [[0] * len(ids) for ids in batch.completion_ids]
    scores = score_completions(model, batch, TEMPERATURE, layout, with_entropy=True)
    assert scores.logps.shape == (8, batch.width) and not scores.logps.any() and not scores.entropy.any()
    scores.logps.sum().backward()
    assert not any(p.grad.any() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("layout", ["shared_prompt", "padded"])
def test_logits_are_made_for_scored_tokens_only(layout):
    model = make_policy()
    choose_layout("shared_prompt", model, False)
    batch = batch_of(random_ids(1, seed=3), [0, 0], [[*range(10, 20)], [*range(30, 40)]])
    batch.scored = [[1, 1, 0, 0, 0, 0, 0, 1, 1, 0], [1, 0, 0, 0, 0, 0, 0, 0, 0, 0]]
    rows: list[int] = []
    original = torch.nn.Linear.forward

    def counting(self, x):
        if self.out_features == 259:
            rows.append(x.numel() // x.shape[-1])
        return original(self, x)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.Linear, "forward", counting)
        model.lm_head.__dict__.pop("forward", None)
        score_completions(model, batch, TEMPERATURE, layout)
    assert rows == ([5] if layout == "shared_prompt" else [2 * 4])


def test_the_end_that_nothing_depends_on_is_left_out():
    batch = batch_of([[5, 6, 7]], [0, 0, 0], [[10, 11, 12, 13], [20, 21], [30, 31, 32]])
    batch.scored = [[1, 0, 1, 0], [0, 0], [0, 1, 1]]
    packed = pack(batch)
    assert packed.input_ids.tolist() == [[5, 6, 7, 10, 11, 30, 31]]
    assert packed.position_ids.tolist() == [[0, 1, 2, 3, 4, 3, 4]]
    assert packed.predictors.tolist() == [2, 4, 5, 6] and packed.targets.tolist() == [10, 12, 31, 32]
    assert packed.slots.tolist() == [0, 2, 9, 10] and packed.layout.groups[0].lengths == [2, 2]
    whole = pack(batch, keep_last_tokens=True)
    assert whole.input_ids.tolist() == [[5, 6, 7, 10, 11, 12, 13, 20, 21, 30, 31, 32]]
    assert whole.predictors.tolist() == [2, 4, 9, 10]


def test_router_losses_count_tokens_that_are_not_scored():
    model = make_policy(use_moe=True, num_experts_per_tok=2).eval()
    choose_layout("shared_prompt", model, True)
    plain, masked = ragged_batch(), with_masks(ragged_batch())
    for layout in ("shared_prompt", "padded"):
        expected = score_completions(model, plain, TEMPERATURE, layout, with_aux_loss=True)
        found = score_completions(model, masked, TEMPERATURE, layout, with_aux_loss=True)
        torch.testing.assert_close(found.aux_loss, expected.aux_loss)
        for row, mask in enumerate(masked.scored):
            kept = torch.tensor(mask)
            torch.testing.assert_close(found.logps[row, : len(mask)], expected.logps[row, : len(mask)] * kept)


def test_values_of_scored_tokens():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=259,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_labels=1,
    )
    critic = LlamaForTokenClassification(config).double().eval()
    plain, masked = ragged_batch(), with_masks(ragged_batch())
    expected = completion_values(critic, plain, "padded")
    attach(critic)
    found = completion_values(critic, masked, "shared_prompt")
    for row, mask in enumerate(masked.scored):
        torch.testing.assert_close(
            found[row, : len(mask)], expected[row, : len(mask)] * torch.tensor(mask), atol=1e-9, rtol=0
        )
