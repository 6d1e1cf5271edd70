# SPDX-License-Identifier: Apache-2.0
"""What needs a CUDA device: kernels against each other there, memory, and whole runs (`pytest -m gpu`)."""

import pytest
import torch
from test_flex import GROUPS, states_of
from test_layouts import even_batch, gradients, ragged_batch
from test_windows import gemma3, sharp
from tiny import GRPO, make_llama, make_policy, tiny_trainer

from minimind_hf import GRPOConfig, SamplingParams, TorchEngine
from minimind_hf.forward import flex, shared_prompt
from minimind_hf.forward.layouts import choose_layout
from minimind_hf.forward.row_layout import RowLayout
from minimind_hf.forward.scoring_head import LOGITS_PER_CHUNK, MOST_LOGITS, free_bytes, logits_per_chunk
from minimind_hf.forward.shared_prompt import FLEX_NAME
from minimind_hf.forward.token_batch import TokenBatch

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def whole_products(monkeypatch):
    """float32 is float32, not TF32."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


@pytest.mark.parametrize("window", [None, 4, 100])
@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 5e-2)], ids=str)
def test_flex_attention_and_its_gradients_equal_those_by_group(groups, window, dtype, tolerance):
    layout = RowLayout.of(groups, CUDA)
    states, grad = states_of(groups, torch.float32, dim=64, value_dim=64)
    states = [each.detach().to(CUDA, dtype).requires_grad_() for each in states]
    grad = grad.to(CUDA, dtype)
    results = []
    for attend in (
        lambda: flex.flex_row_attention(*states, layout.flex(window), None),
        lambda: shared_prompt._by_group(*states, layout, window, {"scale": None}),
    ):
        output = attend()
        results.append([output, *torch.autograd.grad(output, states, grad)])
    for mine, expected in zip(*results, strict=True):
        torch.testing.assert_close(mine, expected, atol=tolerance, rtol=tolerance)


def on_device(batch: TokenBatch) -> TokenBatch:
    batch.device = CUDA
    return batch


@pytest.mark.parametrize("batch", [ragged_batch, even_batch])
@pytest.mark.parametrize(
    "make",
    [lambda: make_policy(hidden_size=128), make_llama, lambda: sharp(gemma3)],
    ids=["minimind", "llama", "gemma3"],
)
def test_shared_prompt_equals_padded(make, batch):
    model, batch = make().to(CUDA), on_device(batch())
    assert choose_layout("shared_prompt", model, False) == ("shared_prompt", None)
    found, grads, mask = gradients(model, batch, "shared_prompt")
    plain, expected, _ = gradients(model, batch, "padded")
    torch.testing.assert_close(found.logps[mask], plain.logps[mask], atol=1e-3, rtol=0)
    for name, gradient in expected.items():
        assert (grads[name] - gradient).norm() <= 5e-3 * gradient.norm().clamp(min=1e-3), name


def test_flex_attention_is_what_a_device_takes():
    model = make_policy(hidden_size=128).to(CUDA)
    choose_layout("shared_prompt", model, False)
    assert model.config._attn_implementation == FLEX_NAME


def test_chunks_of_the_head_follow_the_memory_that_is_free():
    before, most = free_bytes(CUDA), logits_per_chunk(CUDA)
    assert 0 < before <= torch.cuda.get_device_properties(CUDA).total_memory
    held = torch.empty(int(0.9 * before), dtype=torch.uint8, device=CUDA)
    assert free_bytes(CUDA) <= 0.11 * before
    assert LOGITS_PER_CHUNK <= logits_per_chunk(CUDA) <= most <= MOST_LOGITS
    del held
    torch.cuda.empty_cache()


@pytest.mark.parametrize("path", ["auto", "graph", "fast", "general"])
def test_each_path_of_the_engine_draws_the_same_tokens(path):
    drawn = {}
    for name in (path, "general"):
        engine = TorchEngine(path=name)
        engine.sync_weights(make_policy(hidden_size=128).to(CUDA), 0)
        drawn[name] = engine.generate([[5, 6, 7, 8], [9, 10]], 3, SamplingParams(16, 1.0, (2,), seed=1))
    same = [mine.completion_ids == other.completion_ids for mine, other in zip(*drawn.values(), strict=True)] or [True]
    assert sum(same) >= len(same) - 1  # a number may lie between two tokens


@pytest.mark.parametrize("bf16", [False, True])
def test_a_run_proves_its_fast_paths_and_takes_them(bf16, tmp_path):
    settings = {name: value for name, value in GRPO.items() if name != "use_cpu"}
    args = GRPOConfig(output_dir=str(tmp_path), **settings, bf16=bf16, verify_fast_paths="always")
    trainer = tiny_trainer(args, make_policy(hidden_size=128), engine=None)
    trainer.train()
    assert trainer.layout == "shared_prompt"
    assert all(torch.isfinite(torch.tensor(log["loss"])) for log in trainer.state.log_history if "loss" in log)
