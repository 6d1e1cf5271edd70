# SPDX-License-Identifier: Apache-2.0
"""The in-process engine against `model.generate` and the padded forward."""

import pytest
import torch
from tiny import EOS, PAD, make_llama, make_policy, random_ids
from transformers import GPT2Config, GPT2LMHeadModel

from minimind_hf.forward.logprobs import completion_scores
from minimind_hf.rollout import SamplingParams, TorchEngine


def make_gpt2(seed=0):
    torch.manual_seed(seed)
    return GPT2LMHeadModel(GPT2Config(vocab_size=259, n_embd=32, n_layer=2, n_head=4, n_positions=64)).eval()


POLICIES = {
    "minimind": make_policy,
    "moe": lambda: make_policy(use_moe=True),
    "yarn": lambda: make_policy(inference_rope_scaling=True),
    "llama": make_llama,
    "gpt2": make_gpt2,
}


def sampling(**changes) -> SamplingParams:
    return SamplingParams(**{"max_completion_length": 10, "temperature": 0.8, "eos_token_ids": (EOS,)} | changes)


def engine_for(model, **kwargs) -> TorchEngine:
    engine = TorchEngine(**kwargs)
    engine.sync_weights(model, version=7)
    return engine


@pytest.mark.parametrize("name", POLICIES)
def test_greedy_equals_generate(name):
    model = POLICIES[name]()
    prompts = random_ids(5)
    # A token that greedy decoding reaches in some rows and not in others, so that rows end at different times.
    plain = engine_for(model).generate(prompts, 1, sampling(greedy=True, eos_token_ids=(-1,)))
    stop = plain[0].completion_ids[4]
    rollouts = engine_for(model).generate(prompts, 2, sampling(greedy=True, eos_token_ids=(EOS, stop)))
    for i, ids in enumerate(prompts):
        expected = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=10,
            do_sample=False,
            eos_token_id=[EOS, stop],
            pad_token_id=PAD,
        )[0, len(ids) :].tolist()
        assert rollouts[2 * i].completion_ids == expected
        assert rollouts[2 * i + 1].completion_ids == expected


@pytest.mark.parametrize("name", POLICIES)
def test_logprobs_are_those_of_the_sampling_distribution(name):
    model = POLICIES[name]()
    prompts = random_ids(4)
    for i, rollout in enumerate(engine_for(model).generate(prompts, 3, sampling(temperature=0.7))):
        ids, prompt = torch.tensor([rollout.completion_ids]), torch.tensor([prompts[i // 3]])
        logits = model(torch.cat([prompt, ids], dim=1)).logits[0, prompt.shape[1] - 1 : -1]
        expected = (logits / 0.7).log_softmax(-1).gather(1, ids[0, :, None]).squeeze(1)
        torch.testing.assert_close(torch.tensor(rollout.logprobs), expected.detach(), atol=1e-5, rtol=1e-5)


def test_engine_and_training_forward_agree_for_prompts_of_unequal_length():
    model = make_policy()
    prompts = random_ids(6)
    rollouts = engine_for(model).generate(prompts, 1, sampling())
    width, longest = max(len(r.completion_ids) for r in rollouts), max(map(len, prompts))
    batch = {
        "prompt_ids": [[PAD] * (longest - len(ids)) + ids for ids in prompts],
        "prompt_mask": [[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts],
        "completion_ids": [r.completion_ids + [PAD] * (width - len(r.completion_ids)) for r in rollouts],
        "completion_mask": [[1] * len(r.completion_ids) + [0] * (width - len(r.completion_ids)) for r in rollouts],
    }
    scores = completion_scores(model, **{name: torch.tensor(rows) for name, rows in batch.items()}, temperature=0.8)
    for row, rollout in zip(scores.logps, rollouts, strict=True):
        scored = row[: len(rollout.completion_ids)].detach()
        torch.testing.assert_close(scored, torch.tensor(rollout.logprobs), atol=1e-5, rtol=0)


def test_first_eos_ends_and_cut_completions_are_known():
    eos = tuple(range(3, 35))  # likely enough that most completions end, and some are cut
    rollouts = engine_for(make_policy(scale=1.0)).generate(random_ids(8), 4, sampling(eos_token_ids=eos))
    reasons = {rollout.finish_reason for rollout in rollouts}
    assert reasons == {"stop", "length"}
    for rollout in rollouts:
        ids = rollout.completion_ids
        assert not any(token in eos for token in ids[:-1])
        assert (ids[-1] in eos) == (rollout.finish_reason == "stop")
        assert rollout.finish_reason == "stop" or len(ids) == 10
        assert len(rollout.logprobs) == len(ids)
        assert rollout.weights_version == 7


def test_same_seed_same_completions_and_global_random_state_is_left_alone():
    engine, prompts = engine_for(make_policy()), random_ids(3)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = engine.generate(prompts, 4, sampling(seed=5))
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert [r.completion_ids for r in engine.generate(prompts, 4, sampling(seed=5))] == [
        r.completion_ids for r in first
    ]
    assert [r.completion_ids for r in engine.generate(prompts, 4, sampling(seed=6))] != [
        r.completion_ids for r in first
    ]


def test_waves_keep_the_order_of_prompts():
    model, prompts = make_policy(), random_ids(7)
    whole = engine_for(model).generate(prompts, 2, sampling(greedy=True))
    waves = engine_for(model, max_batch_rows=4).generate(prompts, 2, sampling(greedy=True))
    assert [r.completion_ids for r in waves] == [r.completion_ids for r in whole]


def test_samples_follow_the_distribution():
    # 4000 draws of the first token; the total variation distance of an honest sampler to its own distribution over
    # the 20 likeliest tokens stays below 0.05 with overwhelming odds (its expectation is about 0.02).
    model = make_policy(scale=6.0)
    rollouts = engine_for(model, max_batch_rows=4000).generate([[10, 20, 30]], 4000, sampling(max_completion_length=1))
    counts = torch.bincount(torch.tensor([r.completion_ids[0] for r in rollouts]), minlength=259) / 4000
    probabilities = (model(torch.tensor([[10, 20, 30]])).logits[0, -1] / 0.8).softmax(-1).detach()
    top = probabilities.topk(20).indices
    assert (counts[top] - probabilities[top]).abs().sum() / 2 < 0.05


def test_training_mode_is_restored():
    model = make_policy().train()
    engine_for(model).generate([[5]], 1, sampling())
    assert model.training


def test_needs_weights_first():
    with pytest.raises(RuntimeError, match="sync_weights"):
        TorchEngine().generate([[5]], 1, sampling())
    with pytest.raises(ValueError, match="max_batch_rows"):
        TorchEngine(max_batch_rows=0)
