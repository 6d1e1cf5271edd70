# SPDX-License-Identifier: Apache-2.0
"""A fast path proves itself on the run's own prompts. Faults are put in, and each of them is found."""

import pytest
import torch
from naming import raises_naming
from sessions import sessions_for
from test_torch_engine import POLICIES, engine_for, make_lora, random_ids, sampling
from tiny import make_policy

from minimind_hf.forward.proof import Finding
from minimind_hf.rollout import TorchEngine
from minimind_hf.rollout.torch import fast_attention, fast_weights, proof, static_decoder
from minimind_hf.rollout.torch.noise import uniforms
from minimind_hf.rollout.torch.proof import Proofs, few_prompts
from minimind_hf.rollout.torch.static_decoder import StaticDecoder

PROMPTS = random_ids(5)
EACH = [(name, path) for name in ("minimind", "moe", "qwen2", "gpt2") for path in ("fast", "graph")]
EACH.remove(("gpt2", "fast"))


@pytest.fixture
def said(monkeypatch) -> list[str]:
    """The lines that proofs log."""
    lines = []
    monkeypatch.setattr(proof.logger, "warning", lambda line, *values: lines.append(line % values))
    return lines


@pytest.mark.parametrize("changes", [{}, {"greedy": True}, {"top_k": 5, "top_p": 0.9}], ids=str)
@pytest.mark.parametrize(("name", "path"), EACH)
def test_equal_paths_are_taken_and_nothing_else_changes(name, path, changes, said):
    model, params = POLICIES[name](), sampling(seed=3, **changes)
    expected = engine_for(model, path=path, verify_fast_paths="off").generate(PROMPTS, 3, params)
    assert said == []
    model.train()
    before = torch.get_rng_state()
    engine = engine_for(model, path=path, verify_fast_paths="always")
    for _ in range(2):
        assert as_text(engine.generate(PROMPTS, 3, params)) == as_text(expected)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    (line,) = said  # once, though it was asked twice
    assert path in line and "equals" in line and type(model).__name__ in line


def as_text(rollouts) -> str:
    return str(rollouts)  # arrays of kept sets cannot be compared by ==


@pytest.mark.parametrize("path", ["fast", "graph"])
def test_rounding_in_bfloat16_is_no_fault(path, said):
    for model in (make_policy(scale=2.0), make_policy(scale=2.0, use_moe=True), make_lora()):
        engine_for(model, path=path, dtype="bfloat16", verify_fast_paths="always").generate(PROMPTS, 2, sampling())
    assert len(said) == 3 and all("equals" in line for line in said)


def unpaired(patch):
    """Weights packed for another rotation: RoPE turns dimensions that do not belong together."""
    patch(fast_weights, "paired", torch.arange)


def norm_left_out(patch):
    """Weights packed without those of the norm before them."""
    patch(fast_weights, "_scale", lambda module: torch.full_like(module.weight, len(module.weight) ** 0.5))


def prompts_all_seen(patch):
    """No mask over what is behind shorter prompts."""
    patch(fast_attention.RowAttention, "_mask", lambda self: torch.zeros(len(self.lengths), 1, 1, 1))


def own_tokens_unseen(patch):
    """A mask that is not opened for the new token."""

    def forward(self, bucket):
        logits = self._decode(bucket.token_ids, bucket.bias, bucket.positions, bucket.cache)
        bucket.positions.add_(1)
        return logits

    patch(StaticDecoder, "_forward", forward)


def padding_seen(patch):
    """A mask that shows the padding of prompts."""
    original = StaticDecoder._fill

    def fill(self, rows):
        self.mask = torch.ones_like(self.mask)
        original(self, rows)

    patch(StaticDecoder, "_fill", fill)


def replayed_too_late(patch):
    """A graph whose output is that of the step before."""
    original = StaticDecoder._replayed

    def replayed(self, bucket, draw):
        previous, new = getattr(self, "previous", None), original(self, bucket, draw)
        self.previous = new
        return new if previous is None or len(previous[0]) != len(new[0]) else previous

    patch(StaticDecoder, "_replayed", replayed)


def positions_not_moved(patch):
    """A graph in which a number of the host is always what it was when it was captured."""
    original = StaticDecoder._forward

    def forward(self, bucket):
        before = bucket.positions.clone()
        logits = original(self, bucket)
        bucket.positions.copy_(before)
        return logits

    patch(StaticDecoder, "_forward", forward)


def rows_mixed_up(patch):
    """Rows that leave their order when others leave the batch."""
    original = StaticDecoder.reorder
    patch(StaticDecoder, "reorder", lambda self, rows: original(self, sorted(rows)))


def not_a_number(patch):
    original = StaticDecoder._forward
    broken = torch.tensor([0])
    patch(StaticDecoder, "_forward", lambda *args: original(*args).index_fill(0, broken, float("nan")))


def capture_that_fails(patch):
    def forward(*args):
        raise RuntimeError("operation not permitted when stream is capturing")

    patch(StaticDecoder, "_forward", forward)


def noise_of_others(patch):
    """Tokens drawn with the numbers of other rows."""
    patch(static_decoder, "uniforms", lambda counters: uniforms(counters.flip(0)))


def noise_that_stays(patch):
    """Tokens drawn with the same numbers in every step."""
    patch(static_decoder, "advance", lambda counters: None)


FAULTS = [
    (unpaired, "fast", "logits differ"),
    (norm_left_out, "fast", "logits differ"),
    (prompts_all_seen, "fast", "logits differ"),
    (own_tokens_unseen, "graph", "logits differ"),
    (padding_seen, "graph", "logits differ"),
    (replayed_too_late, "graph", "drawn tokens differ"),
    (rows_mixed_up, "graph", "logits differ"),
    (not_a_number, "graph", "logits differ by nan"),
    (capture_that_fails, "graph", "RuntimeError: operation not permitted when stream is capturing"),
    (positions_not_moved, "graph", "logits differ"),
    (noise_of_others, "graph", "drawn tokens differ"),
    (noise_that_stays, "graph", "drawn tokens differ"),
]


@pytest.mark.parametrize(("fault", "path", "words"), FAULTS, ids=[fault.__name__ for fault, *_ in FAULTS])
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_a_fault_is_found_and_the_plain_path_taken(fault, path, words, dtype, monkeypatch, said):
    model = make_policy(scale=3.0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.mul_(1 + torch.rand_like(parameter))
    plain = engine_for(model, path="general", dtype=dtype).generate(PROMPTS, 3, sampling())
    fault(monkeypatch.setattr)
    engine = engine_for(model, path=path, dtype=dtype, verify_fast_paths="always")
    for _ in range(2):
        assert engine.generate(PROMPTS, 3, sampling()) == plain
    (line,) = said  # one warning for the run
    assert path in line and words in line and "own forward" in line


def test_episodes_are_proved_too(monkeypatch, said):
    own_tokens_unseen(monkeypatch.setattr)
    model = make_policy()
    engine = engine_for(model, path="graph", verify_fast_paths="always")
    engine.converse(sessions_for(PROMPTS), sampling(max_completion_length=12))
    assert len(said) == 1 and "differ" in said[0]


CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("mode", "device", "fault", "asked"),
    [
        ("first", CUDA, None, 1),
        ("first", CUDA, "wrong", 1),
        ("first", CPU, "wrong", 0),
        ("always", CUDA, None, 3),
        ("always", CPU, None, 3),
        ("always", CPU, "wrong", 1),  # a path that was wrong is not tried again
        ("off", CUDA, "wrong", 0),
    ],
)
def test_when_it_is_asked(mode, device, fault, asked, said):
    proofs, models, questions = Proofs(mode), [make_policy(), make_policy()], []
    for model in models:
        for _ in range(3):
            found = proofs.holds("graph", model, device, lambda: questions.append(0) or Finding(fault))
            assert found == (fault is None or asked == 0)
    assert len(questions) == 2 * asked  # for each model of its own
    assert len(said) == (2 if asked else 0)


@pytest.mark.parametrize(
    ("path", "device", "expected"),
    [
        ("auto", "cpu", "fast"),
        ("auto", "cuda", "graph"),
        ("auto", "mps", "general"),
        ("fast", "cuda", "fast"),
        ("graph", "cpu", "graph"),
        ("general", "cuda", "general"),
    ],
)
def test_the_path_of_a_device(path, device, expected, monkeypatch):
    engine = engine_for(make_policy(), path=path)
    monkeypatch.setattr(engine, "_device", lambda: torch.device(device))
    assert engine._path(10) == expected


def test_models_without_a_fast_path_take_the_general_one(monkeypatch):
    looping = make_policy(use_moe=True)
    looping.set_experts_implementation("eager")
    engine = engine_for(looping)
    monkeypatch.setattr(engine, "_device", lambda: torch.device("cuda"))
    assert engine._path(10) == "general"


def test_a_few_prompts_of_unequal_length():
    assert few_prompts([[1]]) == [[1]]
    assert few_prompts([[1, 2], [1, 2], [1, 2]]) == [[1, 2]]
    assert few_prompts([[3, 4], [5, 6], [7], [8, 9, 10], [11, 12]]) == [[7], [8, 9, 10], [3, 4]]


def test_an_unknown_mode():
    with raises_naming(ValueError, "verify_fast_paths", "'sometimes'", "first", "always", "off"):
        TorchEngine(verify_fast_paths="sometimes")
