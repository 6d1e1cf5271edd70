# SPDX-License-Identifier: Apache-2.0
"""Drawing tokens."""

import torch

from minimind_hf.rollout import SamplingParams
from minimind_hf.rollout.torch.sampling import sample


def draw(logits, temperature=1.0, seed=0, greedy=False):
    params = SamplingParams(1, temperature, (), greedy=greedy)
    uniforms = torch.rand(len(logits), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return sample(logits, params, uniforms)


def test_frequencies_are_the_probabilities():
    # 200000 draws of 4 tokens: the standard error of a frequency is at most sqrt(0.25 / 200000) = 0.0011.
    probabilities = torch.tensor([0.5, 0.3, 0.19, 0.01])
    ids, _ = draw(probabilities.log().expand(200_000, -1))
    frequencies = torch.bincount(ids, minlength=4) / 200_000
    torch.testing.assert_close(frequencies, probabilities, atol=0.006, rtol=0)


def test_temperature_is_in_distribution_and_logprob():
    logits = torch.tensor([[1.0, 2.0, 4.0]])
    ids, logps = draw(logits.expand(100_000, -1), temperature=2.0)
    expected = (logits[0] / 2.0).log_softmax(-1)
    torch.testing.assert_close(logps, expected[ids])
    torch.testing.assert_close(torch.bincount(ids) / 100_000, expected.exp(), atol=0.008, rtol=0)


def test_impossible_tokens_are_never_drawn():
    # First, last and in between: wherever a cumulative sum stands still.
    logits = torch.tensor([float("-inf"), 0.0, float("-inf"), float("-inf"), 0.0, float("-inf")])
    ids, logps = draw(logits.expand(50_000, -1))
    assert set(ids.tolist()) == {1, 4}
    torch.testing.assert_close(logps, torch.full((50_000,), 0.5).log())


def test_large_vocabulary_of_half_precision_logits():
    # Each of 100000 tokens is as likely as any other; float32 sums of 1e-5 would drift.
    ids, logps = draw(torch.zeros(1, 100_000, dtype=torch.bfloat16).expand(300, -1))
    torch.testing.assert_close(logps, torch.full((300,), 1e-5).log())
    # Mean of 300 uniform numbers: standard error 100000 / sqrt(12 * 300) = 1667.
    assert abs(ids.double().mean() - 49_999.5) < 5 * 1667


def test_greedy_takes_the_likeliest_with_its_logprob():
    logits = torch.tensor([[0.0, 3.0, 1.0], [2.0, 0.0, 1.0]])
    ids, logps = draw(logits, temperature=0.5, greedy=True)
    assert ids.tolist() == [1, 0]
    torch.testing.assert_close(logps, (logits / 0.5).log_softmax(-1).amax(-1))


def test_equal_seeds_draw_equal_tokens():
    logits = torch.randn(500, 100, generator=torch.Generator().manual_seed(1))
    assert torch.equal(draw(logits, seed=3)[0], draw(logits, seed=3)[0])
    assert not torch.equal(draw(logits, seed=3)[0], draw(logits, seed=4)[0])
