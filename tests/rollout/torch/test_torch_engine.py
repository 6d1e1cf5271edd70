# SPDX-License-Identifier: Apache-2.0
"""The in-process engine, by both of its paths, against `model.generate` and the padded forward."""

import copy

import pytest
import torch
from naming import raises_naming
from peft import LoraConfig, get_peft_model
from tiny import EOS, PAD, SHAPE, make_llama, make_policy, random_ids
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from minimind_hf.forward.logprobs import completion_scores
from minimind_hf.rollout import SamplingParams, TorchEngine
from minimind_hf.rollout.torch import engine as torch_engine
from minimind_hf.rollout.torch import fast_decoder, packed_linear

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def make(model_class, config_class, **config):
    """A random model with sharp distributions, whose norms and biases are not all the same."""
    torch.manual_seed(0)
    model = model_class(config_class(**SHAPE | config)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0) if parameter.dim() > 1 else parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def make_gpt2(seed=0):
    torch.manual_seed(seed)
    return GPT2LMHeadModel(GPT2Config(vocab_size=259, n_embd=32, n_layer=2, n_head=4, n_positions=64)).eval()


POLICIES = {
    "minimind": make_policy,
    "untied": lambda: make_policy(tie_word_embeddings=False),
    "moe": lambda: make_policy(use_moe=True),
    "moe-top2": lambda: make_policy(use_moe=True, num_experts_per_tok=2, norm_topk_prob=False),
    "yarn": lambda: make_policy(inference_rope_scaling=True),
    "llama": make_llama,
    "llama3": lambda: make(
        LlamaForCausalLM, LlamaConfig, rope_parameters=LLAMA3_ROPE, head_dim=6, attention_bias=True
    ),
    "qwen2": lambda: make(Qwen2ForCausalLM, Qwen2Config, tie_word_embeddings=True),
    "qwen3": lambda: make(Qwen3ForCausalLM, Qwen3Config, head_dim=16),
    "qwen3-moe": lambda: make(
        Qwen3MoeForCausalLM, Qwen3MoeConfig, head_dim=8, num_experts=4, num_experts_per_tok=2, mlp_only_layers=[0]
    ),
    "gpt2": make_gpt2,
}
EACH = [(name, path) for name in POLICIES for path in ("fast", "general") if (name, path) != ("gpt2", "fast")]
EACH += [(name, "graph") for name in POLICIES]
PATHS = ("fast", "general", "graph")


def sampling(**changes) -> SamplingParams:
    return SamplingParams(**{"max_completion_length": 10, "temperature": 0.8, "eos_token_ids": (EOS,)} | changes)


def engine_for(model, **kwargs) -> TorchEngine:
    engine = TorchEngine(**kwargs)
    engine.sync_weights(model, version=7)
    return engine


def greedy_by_generate(model, ids, length=10, eos=(EOS,)) -> list[int]:
    with torch.no_grad():
        sequences = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=length,
            do_sample=False,
            eos_token_id=list(eos),
            pad_token_id=PAD,
        )
    return sequences[0, len(ids) :].tolist()


def ids_of(rollouts) -> list[list[int]]:
    return [rollout.completion_ids for rollout in rollouts]


def token_that_ends_some(model, prompts, length=10) -> int:
    """A token that greedy decoding reaches in some rows and not in others, so that rows end at different times."""
    rollouts = engine_for(model).generate(prompts, 1, sampling(greedy=True, eos_token_ids=(-1,)))
    return rollouts[0].completion_ids[length // 2 - 1]


def assert_logprobs_of_model(model, prompts, rollouts, num_generations, temperature, **tolerance):
    for i, rollout in enumerate(rollouts):
        ids, prompt = torch.tensor([rollout.completion_ids]), torch.tensor([prompts[i // num_generations]])
        with torch.no_grad():
            logits = model(torch.cat([prompt, ids], dim=1)).logits[0, prompt.shape[1] - 1 : -1].float()
        expected = (logits / temperature).log_softmax(-1).gather(1, ids[0, :, None]).squeeze(1)
        torch.testing.assert_close(torch.tensor(rollout.logprobs), expected, **tolerance)


@pytest.mark.parametrize(("name", "path"), EACH)
def test_greedy_equals_generate(name, path):
    model = POLICIES[name]()
    prompts = random_ids(5)
    eos = (EOS, token_that_ends_some(model, prompts))
    rollouts = engine_for(model, path=path).generate(prompts, 2, sampling(greedy=True, eos_token_ids=eos))
    for i, ids in enumerate(prompts):
        expected = greedy_by_generate(model, ids, eos=eos)
        assert rollouts[2 * i].completion_ids == expected
        assert rollouts[2 * i + 1].completion_ids == expected


@pytest.mark.parametrize(("name", "path"), EACH)
def test_logprobs_are_those_of_the_sampling_distribution(name, path):
    model = POLICIES[name]()
    prompts = random_ids(4)
    rollouts = engine_for(model, path=path).generate(prompts, 3, sampling(temperature=0.7))
    assert_logprobs_of_model(model, prompts, rollouts, 3, 0.7, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("max_batch_rows", [1, 2, 5])
def test_refilled_rows_equal_generate(max_batch_rows):
    # Rows end at many lengths; what takes their places starts behind prompts of other lengths. 70 tokens make the
    # memory of keys and values grow, prompts beyond 8 tokens are prefilled in turns.
    model, prompts = make_policy(), random_ids(5)
    longest = 70
    eos = tuple(sorted({token for ids in prompts for token in greedy_by_generate(model, ids, longest)[20::25]}))
    params = sampling(greedy=True, eos_token_ids=eos, max_completion_length=longest)
    rollouts = engine_for(model, max_batch_rows=max_batch_rows, path="fast").generate(prompts, 3, params)
    expected = [greedy_by_generate(model, ids, longest, eos) for ids in prompts]
    assert len(set(map(len, expected))) > 2
    assert ids_of(rollouts) == [ids for ids in expected for _ in range(3)]
    assert_logprobs_of_model(model, prompts, rollouts, 3, 0.8, atol=1e-4, rtol=0)


@pytest.mark.parametrize("max_batch_rows", [2, 7])
def test_logprobs_of_refilled_samples(max_batch_rows):
    model, prompts = make_policy(scale=2.0), random_ids(6)
    params = sampling(max_completion_length=30, eos_token_ids=tuple(range(3, 20)))
    rollouts = engine_for(model, max_batch_rows=max_batch_rows, path="fast").generate(prompts, 4, params)
    assert len({len(rollout.completion_ids) for rollout in rollouts}) > 4
    assert_logprobs_of_model(model, prompts, rollouts, 4, 0.8, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["minimind", "moe", "qwen2"])
def test_fast_path_without_packed_products(name, monkeypatch):
    monkeypatch.setattr(packed_linear, "can_pack", lambda device, dtype: False)
    model, prompts = POLICIES[name](), random_ids(4)
    rollouts = engine_for(model, path="fast").generate(prompts, 2, sampling())
    assert_logprobs_of_model(model, prompts, rollouts, 2, 0.8, atol=1e-5, rtol=1e-5)


def test_long_prompts_are_prefilled_in_turns(monkeypatch):
    model, prompts = make_policy(), random_ids(6)
    whole = engine_for(model, path="fast").generate(prompts, 2, sampling(greedy=True))
    monkeypatch.setattr(fast_decoder, "MAX_PREFILL_TOKENS", 10)
    assert ids_of(engine_for(model, path="fast").generate(prompts, 2, sampling(greedy=True))) == ids_of(whole)


def make_lora(**lora):
    torch.manual_seed(0)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    return get_peft_model(make_policy(), LoraConfig(r=4, target_modules=targets, init_lora_weights=False, **lora))


def test_lora_is_decoded_with_its_adapters_and_left_alone():
    model, prompts = make_lora(), random_ids(4)
    before = copy.deepcopy(model.state_dict())
    engine = engine_for(model, path="fast")
    rollouts = engine.generate(prompts, 2, sampling())
    model.eval()
    assert_logprobs_of_model(model, prompts, rollouts, 2, 0.8, atol=1e-5, rtol=1e-5)
    with model.disable_adapter():
        base = engine.generate(prompts, 2, sampling())
        assert_logprobs_of_model(model, prompts, base, 2, 0.8, atol=1e-5, rtol=1e-5)
    assert ids_of(base) != ids_of(rollouts)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize("path", PATHS)
def test_new_weights_are_used_after_a_sync(path):
    model, prompts = make_policy(), random_ids(4)
    engine = engine_for(model, path=path)
    engine.generate(prompts, 2, sampling())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.7)
    engine.sync_weights(model, version=8)
    rollouts = engine.generate(prompts, 2, sampling())
    assert {rollout.weights_version for rollout in rollouts} == {8}
    assert_logprobs_of_model(model, prompts, rollouts, 2, 0.8, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("path", PATHS)
def test_rollouts_in_bfloat16_of_a_float32_model(path):
    model, prompts = make_policy(scale=2.0), random_ids(4)
    before = copy.deepcopy(model.state_dict())
    rollouts = engine_for(model, path=path, dtype="bfloat16").generate(prompts, 3, sampling())
    # bfloat16 has 8 bits: log-probabilities are near those of float32, and not the same.
    assert_logprobs_of_model(model, prompts, rollouts, 3, 0.8, atol=0.1, rtol=0)
    with pytest.raises(AssertionError):
        assert_logprobs_of_model(model, prompts, rollouts, 3, 0.8, atol=1e-5, rtol=0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_rollouts_in_float32_of_a_bfloat16_model():
    model, prompts = make_policy(scale=2.0).bfloat16(), random_ids(4)
    rollouts = engine_for(model, path="fast", dtype="float32").generate(prompts, 2, sampling())
    assert_logprobs_of_model(copy.deepcopy(model).float(), prompts, rollouts, 2, 0.8, atol=1e-5, rtol=1e-5)
    with raises_naming(ValueError, "torch.bfloat16", "float32"):
        engine_for(model, path="general", dtype="float32").generate(prompts, 2, sampling())


def test_auto_chooses_by_architecture(monkeypatch):
    taken = []
    for name in ("FastDecoder", "CacheDecoder"):
        original = getattr(torch_engine, name)
        monkeypatch.setattr(torch_engine, name, lambda *a, n=name, c=original, **k: taken.append(n) or c(*a, **k))
    for model in (make_policy(), make_gpt2()):
        engine_for(model).generate([[5]], 1, sampling())
    assert taken == ["FastDecoder", "CacheDecoder"]
    with raises_naming(ValueError, "fast", "GPT2LMHeadModel", "MiniMindForCausalLM", "'auto'"):
        engine_for(make_gpt2(), path="fast").generate([[5]], 1, sampling())


def test_what_a_graph_cannot_hold_is_refused():
    sliding = make(Qwen2ForCausalLM, Qwen2Config, use_sliding_window=True, sliding_window=4, max_window_layers=1)
    looping = make_policy(use_moe=True)
    looping.set_experts_implementation("eager")
    unheard_of = make_llama()
    unheard_of.config._attn_implementation = "flash_attention_2"
    quantised = make_llama()
    quantised.config.quantization_config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    refusals = {
        sliding: "Qwen2ForCausalLM",
        looping: "MiniMindForCausalLM",
        unheard_of: "'flash_attention_2'",
        quantised: "bitsandbytes",
    }
    for model, reason in refusals.items():
        with raises_naming(ValueError, "graph", reason, "'auto'"):
            engine_for(model, path="graph").generate([[5]], 1, sampling())


@pytest.mark.parametrize("path", PATHS)
def test_engine_and_training_forward_agree_for_prompts_of_unequal_length(path):
    model = make_policy()
    prompts = random_ids(6)
    rollouts = engine_for(model, path=path).generate(prompts, 1, sampling())
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


@pytest.mark.parametrize("path", PATHS)
def test_first_eos_ends_and_cut_completions_are_known(path):
    eos = tuple(range(3, 35))  # likely enough that most completions end, and some are cut
    rollouts = engine_for(make_policy(scale=1.0), path=path).generate(random_ids(8), 4, sampling(eos_token_ids=eos))
    reasons = {rollout.finish_reason for rollout in rollouts}
    assert reasons == {"stop", "length"}
    for rollout in rollouts:
        ids = rollout.completion_ids
        assert not any(token in eos for token in ids[:-1])
        assert (ids[-1] in eos) == (rollout.finish_reason == "stop")
        assert rollout.finish_reason == "stop" or len(ids) == 10
        assert len(rollout.logprobs) == len(ids)
        assert rollout.weights_version == 7


@pytest.mark.parametrize("path", PATHS)
def test_same_seed_same_completions_and_global_random_state_is_left_alone(path):
    engine, prompts = engine_for(make_policy(), path=path, max_batch_rows=5), random_ids(3)
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


@pytest.mark.parametrize("path", ["general", "graph"])
def test_waves_keep_the_order_of_prompts(path):
    model, prompts = make_policy(), random_ids(7)
    whole = engine_for(model, path=path).generate(prompts, 2, sampling(greedy=True))
    waves = engine_for(model, max_batch_rows=4, path=path).generate(prompts, 2, sampling(greedy=True))
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


def test_no_prompts_no_completions():
    assert engine_for(make_policy()).generate([], 2, sampling()) == []


def test_needs_weights_first():
    with raises_naming(RuntimeError, "TorchEngine", "sync_weights(model, version)"):
        TorchEngine().generate([[5]], 1, sampling())
    with raises_naming(ValueError, "max_batch_rows", 0, 1):
        TorchEngine(max_batch_rows=0)
    with raises_naming(ValueError, "dtype", "'float16'", "bfloat16"):
        TorchEngine(dtype="float16")
    with raises_naming(ValueError, "path", "'quick'", "auto"):
        TorchEngine(path="quick")
