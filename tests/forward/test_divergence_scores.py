# SPDX-License-Identifier: Apache-2.0
"""Student and teacher compared in chunks: in every layout as a dense reference, in the memory of one chunk."""

from functools import cache

import pytest
import torch
from test_layouts import MODELS, SHAPE, batch_of, ragged_batch, seeded
from test_scored import exact, with_masks
from tiny import make_policy, random_ids
from transformers import LlamaConfig, LlamaForCausalLM

from minimind_hf.algorithms import generalized_jsd
from minimind_hf.forward import scoring_head
from minimind_hf.forward.divergences import Comparison, TeacherRows, divergence_scores
from minimind_hf.forward.head_rows import head_is_last, read_head, unchanged
from minimind_hf.forward.kept_tokens import KeptTokens
from minimind_hf.forward.layouts import choose_layout, score_completions
from minimind_hf.forward.shared_prompt import detach

LAYOUTS = ("shared_prompt", "padded", "unpadded")
BETAS = (0.0, 0.3, 0.5, 1.0)
TEMPERATURE = 0.8


class Capped(LlamaForCausalLM):
    """A model whose logits are not what its head returns, like Gemma 2's."""

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, use_cache=None, logits_to_keep=0):
        outputs = super().forward(input_ids, attention_mask, position_ids, logits_to_keep=logits_to_keep)
        outputs.logits = 2 * torch.tanh(outputs.logits / 2)
        return outputs


def capped() -> Capped:
    model = seeded(lambda: Capped(LlamaConfig(**SHAPE)))
    with torch.no_grad():
        model.lm_head.weight.mul_(50)
    return model


def wide_teacher():
    """Another architecture, wider than the student, with the same vocabulary."""
    return exact(seeded(lambda: LlamaForCausalLM(LlamaConfig(**SHAPE | {"hidden_size": 48}))).double())


def dense(student, teacher, batch, comparison):
    """Row by row from whole logits, by autograd; 0 where nothing is scored."""
    found = torch.zeros(3, len(batch), batch.width, dtype=torch.float64)
    for row in range(len(batch)):
        prompt, places = batch.prompt_ids[row], list(batch.scored_places(row))
        ids = torch.tensor([prompt + batch.completion_ids[row]])
        of_student = student(input_ids=ids).logits[0, len(prompt) - 1 : -1]
        with torch.no_grad():
            of_teacher = teacher(input_ids=ids).logits[0, len(prompt) - 1 : -1]
        softness = comparison.loss_temperature
        divergence = generalized_jsd(
            *(torch.log_softmax(each / softness, dim=-1) for each in (of_student, of_teacher)), comparison.beta
        )
        logps = torch.log_softmax(of_student / comparison.temperature, dim=-1)
        chosen = logps.gather(1, torch.tensor(batch.completion_ids[row])[:, None]).squeeze(1)
        entropy = -(logps.exp() * logps).sum(dim=1)
        at = torch.zeros(batch.width, dtype=torch.bool)
        at[places] = True
        for number, values in enumerate((divergence, chosen, entropy)):
            found[number, row, at] = values[at[: len(values)]]
    return found


def teacher_rows(teacher, batch, layout):
    with torch.no_grad():
        if not head_is_last(teacher):
            logits, _ = read_head(teacher, batch, "padded", lambda project, hidden, rows: hidden, reads_head=False)
            return TeacherRows(logits, unchanged)
        hidden, _ = read_head(teacher, batch, layout, lambda project, hidden, rows: hidden)
    return TeacherRows(hidden, teacher.get_output_embeddings().forward)


def gradients(model, divergence):
    weights = torch.randn(divergence.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    model.zero_grad()
    (divergence * weights).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def reference(student, teacher, batch, comparison):
    """Divergences, log-probabilities and entropies of [`dense`], and the gradients of the student."""
    values = dense(student, teacher, batch, comparison)
    return values.detach(), gradients(student, values[0])


@cache
def reference_of(name, has_masks, comparison):
    """The same for every layout and size of chunks."""
    batch = with_masks(ragged_batch()) if has_masks else ragged_batch()
    return reference(exact(MODELS[name]().double()), wide_teacher(), batch, comparison)


def assert_equal_to_dense(student, teacher, batch, comparison, layout, reads_head=True, expected=None):
    scores = divergence_scores(student, batch, teacher_rows(teacher, batch, layout), comparison, layout, reads_head)
    values, of_student = expected or reference(student, teacher, batch, comparison)
    for found, wanted in zip((scores.divergence, scores.logps, scores.entropy), values, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-9, rtol=0)
    assert not scores.logps.requires_grad and not scores.entropy.requires_grad
    found = gradients(student, scores.divergence)
    for name, gradient in of_student.items():
        own = found.get(name, torch.zeros_like(gradient))
        torch.testing.assert_close(own, gradient, atol=1e-9, rtol=1e-9, msg=name)


@pytest.fixture(params=[False, True], ids=["one chunk", "chunks"])
def chunks(request, monkeypatch):
    if request.param:
        monkeypatch.setattr(scoring_head, "LOGITS_PER_CHUNK", 2 * 3 * 259)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("softness", [TEMPERATURE, 1.5])
def test_every_layout_equals_the_dense_reference(beta, layout, softness, chunks):
    student, teacher = exact(make_policy().double()), wide_teacher()
    if layout == "shared_prompt":
        for model in (student, teacher):
            assert choose_layout(layout, model, False) == (layout, None)
    batch, comparison = with_masks(ragged_batch()), Comparison(beta, TEMPERATURE, softness)
    expected = reference_of("minimind", True, comparison)
    assert_equal_to_dense(student, teacher, batch, comparison, layout, expected=expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["qwen2 (biases)", "lora", "checkpointed", "half frozen"])
def test_other_students(name, layout, chunks):
    student, teacher = exact(MODELS[name]().double()), wide_teacher()
    if layout == "shared_prompt":
        assert choose_layout(layout, student, False) == (layout, None)
        choose_layout(layout, teacher, False)
    comparison = Comparison(0.5, TEMPERATURE, 1.0)
    for has_masks, batch in ((True, with_masks(ragged_batch())), (False, ragged_batch())):  # in the middle, and none
        expected = reference_of(name, has_masks, comparison)
        assert_equal_to_dense(student, teacher, batch, comparison, layout, expected=expected)


@pytest.mark.parametrize("layout", ["padded", "unpadded"])
def test_models_that_change_their_logits_after_the_head(layout, chunks):
    assert head_is_last(make_policy()) and not head_is_last(capped())
    batch, comparison = with_masks(ragged_batch()), Comparison(1.0, TEMPERATURE, TEMPERATURE)
    assert_equal_to_dense(exact(make_policy().double()), exact(capped().double()), batch, comparison, layout)
    student = exact(capped().double())
    assert_equal_to_dense(student, wide_teacher(), batch, comparison, layout, reads_head=False)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_log_probabilities_are_over_the_sets_that_tokens_were_drawn_from(layout, chunks):
    model = exact(make_policy().double())
    choose_layout("shared_prompt", model, False)
    batch = ragged_batch()
    sets = [[torch.tensor(sorted({token, 5, 7, 11})).numpy() for token in ids] for ids in batch.completion_ids]
    batch.kept = [KeptTokens.of(each) for each in sets]
    teacher = teacher_rows(model, batch, layout)
    scores = divergence_scores(model, batch, teacher, Comparison(1.0, TEMPERATURE, TEMPERATURE), layout)
    mask = batch.padded()[3].bool()
    expected = score_completions(model, batch, TEMPERATURE, layout).logps
    torch.testing.assert_close(scores.logps[mask], expected[mask], atol=1e-9, rtol=0)
    assert scores.divergence.abs().max() < 1e-12  # over the whole vocabulary, from a teacher that is the student


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_scored_still_has_a_graph(layout):
    model = make_policy().double()
    choose_layout("shared_prompt", model, False)
    batch = ragged_batch()
    batch.scored = [[0] * len(ids) for ids in batch.completion_ids]
    teacher = teacher_rows(model, batch, layout)
    scores = divergence_scores(model, batch, teacher, Comparison(0.5, 1.0, 1.0), layout)
    assert scores.divergence.shape == (8, batch.width) and not scores.divergence.any()
    scores.divergence.sum().backward()
    assert not any(p.grad.any() for p in model.parameters() if p.grad is not None)


def test_the_routers_loss_comes_with_it():
    model = make_policy(use_moe=True, num_experts_per_tok=2)
    batch = ragged_batch()
    detach(model)
    for layout in LAYOUTS:
        if layout == "shared_prompt":
            choose_layout(layout, model, True)
        teacher = teacher_rows(make_policy(seed=1), batch, "padded")
        comparison = Comparison(1.0, TEMPERATURE, TEMPERATURE)
        found = divergence_scores(model, batch, teacher, comparison, layout, with_aux_loss=True).aux_loss
        expected = score_completions(model, batch, TEMPERATURE, layout, with_aux_loss=True).aux_loss
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("layout", ["shared_prompt", "padded"])
def test_no_more_logits_are_kept_than_those_of_a_chunk(layout, monkeypatch):
    rows = 4
    monkeypatch.setattr(scoring_head, "LOGITS_PER_CHUNK", rows * 259)
    student, teacher = make_policy(), make_policy(seed=1)
    for model in (student, teacher):
        choose_layout("shared_prompt", model, False)
    batch = batch_of(random_ids(2, seed=1), [0] * 4 + [1] * 4, random_ids(8, seed=2, low=30, high=30))
    kept, made = [], []

    def note(tensor):
        kept.append(tensor.shape)
        return tensor

    original = torch.nn.Linear.forward

    def counting(self, x):
        if self.out_features == 259:
            made.append(x.numel() // x.shape[-1])
        return original(self, x)

    monkeypatch.setattr(torch.nn.Linear, "forward", counting)
    for model in (student, teacher):  # the lean forward would not be seen
        model.lm_head.__dict__.pop("forward", None)
    of_teacher = teacher_rows(teacher, batch, layout)
    made.clear()  # of finding out that the head is last
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        scores = divergence_scores(student, batch, of_teacher, Comparison(1.0, 1.0, 1.0), layout)
        scores.divergence.sum().backward()
    assert max(made) == rows and len(made) > 4 * 240 / rows - 4  # forward and again in the backward pass, of both
    assert not any(shape[-1:] == (259,) and shape.numel() > rows * 259 for shape in kept)


def test_the_layout_of_flash_attention():
    student, teacher = (exact(seeded(lambda: LlamaForCausalLM(LlamaConfig(**SHAPE))).double()) for _ in range(2))
    with torch.no_grad():
        teacher.lm_head.weight.mul_(3)
    batch = with_masks(ragged_batch())
    assert_equal_to_dense(student, teacher, batch, Comparison(1.0, TEMPERATURE, TEMPERATURE), "varlen")
