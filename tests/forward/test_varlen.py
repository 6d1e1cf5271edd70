# SPDX-License-Identifier: Apache-2.0
"""The layout of FlashAttention against the padded one, with a double of its kernel, which takes sequences by ends."""

import pytest
import torch
import torch.nn.functional as F
from test_layouts import BATCHES, gradients, ragged_batch, single_tokens
from test_windows import gemma3, sharp
from tiny import GRPO, make_llama, make_policy, tiny_trainer
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForTokenClassification
from transformers.masking_utils import flash_attention_mask

from minimind_hf import GRPOConfig
from minimind_hf.forward.layouts import choose_layout
from minimind_hf.forward.token_batch import TokenBatch
from minimind_hf.forward.values import choose_values_layout, completion_values
from minimind_hf.forward.varlen import pack_sequences, takes_varlen

MODELS = {
    "minimind": make_policy,
    "moe": lambda: make_policy(use_moe=True, num_experts_per_tok=2),
    "llama": make_llama,
    "gemma3": lambda: sharp(gemma3),
}


class FlashDouble:
    """What FlashAttention computes for rows with a mask, and for one row of sequences whose ends it is given."""

    def __init__(self):
        self.calls = []

    def __call__(self, module, query, key, value, attention_mask, scaling=None, sliding_window=None, **kwargs):
        repeats = query.shape[1] // key.shape[1]
        key, value = (states.repeat_interleave(repeats, dim=1) for states in (key, value))
        ends, longest = kwargs.get("cu_seq_lens_q"), kwargs.get("max_length_q")
        self.calls.append("mask" if ends is None else "ends")
        if ends is None:
            return self._rows(query, key, value, attention_mask, scaling, sliding_window).transpose(1, 2), None
        assert attention_mask is None and len(query) == 1 and ends.dtype == torch.int32
        assert isinstance(longest, int) and longest == ends.diff().max() and ends[-1] == query.shape[2]
        pieces = zip(*(states.split(ends.diff().tolist(), dim=2) for states in (query, key, value)), strict=True)
        outputs = [self._rows(*piece, None, scaling, sliding_window) for piece in pieces]
        return torch.cat(outputs, dim=2).transpose(1, 2), None

    @staticmethod
    def _rows(query, key, value, mask, scaling, window):
        length = query.shape[2]
        sees = torch.ones(length, length, dtype=torch.bool).tril()
        if window is not None:
            sees = sees.triu(1 - window)
        if mask is not None:
            sees = sees & mask[:, None, None, :].bool() | torch.eye(length, dtype=torch.bool)
        return F.scaled_dot_product_attention(query, key, value, sees, scale=scaling)


@pytest.fixture
def flash(monkeypatch):
    double = FlashDouble()
    monkeypatch.setitem(AttentionInterface._global_mapping, "flash_attention_2", double)
    monkeypatch.setitem(AttentionMaskInterface._global_mapping, "flash_attention_2", flash_attention_mask)
    return double


def with_flash(model):
    model.config._attn_implementation = "flash_attention_2"
    return model


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", MODELS)
def test_equal_to_padded(name, batch, flash):
    batch, with_aux_loss = BATCHES[batch](), name == "moe"
    plain, expected, mask = gradients(MODELS[name](), batch, "padded", with_aux_loss)
    model = with_flash(MODELS[name]())
    assert choose_layout("shared_prompt", model, with_aux_loss)[0] == "varlen"
    flash.calls.clear()
    found, grads, _ = gradients(model, batch, "varlen", with_aux_loss)
    assert set(flash.calls) == {"ends"}
    torch.testing.assert_close(found.logps[mask], plain.logps[mask], atol=2e-5, rtol=0)
    torch.testing.assert_close(found.entropy[mask], plain.entropy[mask], atol=2e-5, rtol=0)
    if with_aux_loss:
        torch.testing.assert_close(found.aux_loss, plain.aux_loss, atol=1e-5, rtol=0)
    for parameter, gradient in expected.items():
        atol = 2e-5 * max(1, gradient.abs().max().item())
        torch.testing.assert_close(grads[parameter], gradient, atol=atol, rtol=1e-3)


def test_equal_through_sdpa_which_finds_sequences_by_positions():
    model, batch = make_policy(), ragged_batch()
    plain, expected, mask = gradients(model, batch, "padded")
    found, grads, _ = gradients(model, batch, "varlen")
    torch.testing.assert_close(found.logps[mask], plain.logps[mask], atol=1e-5, rtol=0)
    for parameter, gradient in expected.items():
        torch.testing.assert_close(grads[parameter], gradient, atol=5e-5, rtol=1e-4)


def test_nothing_is_padded_and_each_completion_has_its_prompt():
    batch = ragged_batch()
    packed = pack_sequences(batch)
    lengths = [len(prompt) + len(ids) - 1 for prompt, ids in zip(batch.prompt_ids, batch.completion_ids, strict=True)]
    assert packed.input_ids.shape == (1, sum(lengths))
    inputs = packed.attention_inputs()
    assert inputs["cu_seq_lens_q"].diff().tolist() == lengths and inputs["max_length_k"] == max(lengths)
    assert packed.position_ids[0].tolist() == [place for length in lengths for place in range(length)]
    assert len(pack_sequences(single_tokens()).layout.groups) == 4


def test_who_takes_it(flash):
    assert not takes_varlen(make_policy())
    layout, reason = choose_layout("shared_prompt", with_flash(make_policy()), False)
    assert layout == "varlen" and "attn_implementation='flash_attention_2'" in reason
    assert choose_layout("padded", with_flash(make_policy()), False) == ("padded", None)


def test_a_kernel_that_ignores_the_ends_is_found_out(flash, monkeypatch):
    right = flash.__class__.__call__

    def blind(self, *args, **kwargs):
        return right(self, *args, **{name: value for name, value in kwargs.items() if "q" not in name})

    monkeypatch.setattr(FlashDouble, "__call__", blind)
    layout, reason = choose_layout("shared_prompt", with_flash(make_policy()), False)
    assert layout == "padded" and "differ" in reason


def test_the_critic_takes_it_too(flash, tmp_path):
    make_llama().save_pretrained(tmp_path)
    critic = AutoModelForTokenClassification.from_pretrained(tmp_path, num_labels=1).eval()
    batch: TokenBatch = ragged_batch()
    mask = batch.padded()[3].bool()
    plain = completion_values(critic, batch, "padded")[mask]
    assert choose_values_layout("varlen", critic, attaches=True) == "padded"
    assert choose_values_layout("varlen", with_flash(critic), attaches=True) == "varlen"
    torch.testing.assert_close(completion_values(critic, batch, "varlen")[mask], plain, atol=1e-5, rtol=0)


def test_a_run_takes_it_and_ends_where_a_padded_one_does(flash, tmp_path):
    weights = {}
    for layout in ("shared_prompt", "padded"):
        args = GRPOConfig(output_dir=str(tmp_path), **GRPO, forward_layout=layout)
        trainer = tiny_trainer(args, with_flash(make_llama()))
        assert trainer.layout == {"shared_prompt": "varlen", "padded": "padded"}[layout]
        trainer.train()
        weights[layout] = dict(trainer.policy.named_parameters())
    for name, parameter in weights["padded"].items():
        torch.testing.assert_close(weights["shared_prompt"][name], parameter, atol=1e-5, rtol=0)
