# SPDX-License-Identifier: Apache-2.0
"""A cache keeps every key to which the model attends."""

import pytest
import torch
from tiny import random_ids
from transformers import MistralConfig, MistralForCausalLM, MoshiConfig, MoshiForCausalLM
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from minimind_hf.forward.logprobs import completion_scores
from minimind_hf.rollout import SamplingParams, TorchEngine
from minimind_hf.rollout.torch.caches import new_cache

WINDOW = 8
SIZES = {
    "vocab_size": 259,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "sliding_window": WINDOW,
}


def make(model_class, config_class, **sizes):
    torch.manual_seed(0)
    return model_class(config_class(**SIZES, **sizes)).eval()


def moshi():
    """Its config has a window, of which its code knows nothing."""
    return make(MoshiForCausalLM, MoshiConfig, head_dim=8, ffn_dim=64)


def mistral():
    return make(MistralForCausalLM, MistralConfig, intermediate_size=64)


@pytest.mark.parametrize(("model", "layer"), [(moshi, DynamicLayer), (mistral, DynamicSlidingWindowLayer)])
def test_it_forgets_where_the_model_hides(model, layer):
    assert {type(each) for each in new_cache(model()).layers} == {layer}


@pytest.mark.parametrize("make_model", [moshi, mistral])
@torch.no_grad()
def test_log_probabilities_beyond_the_window_are_those_of_a_pass_without_a_cache(make_model):
    model, engine = make_model(), TorchEngine()
    engine.sync_weights(model, 0)
    (prompt,) = random_ids(1, low=6, high=7)
    for rollout in engine.generate([prompt], 2, SamplingParams(3 * WINDOW, 0.9, (), 0)):
        ids = torch.tensor([prompt]), torch.tensor([rollout.completion_ids])
        scores = completion_scores(model, ids[0], torch.ones_like(ids[0]), ids[1], torch.ones_like(ids[1]), 0.9)
        torch.testing.assert_close(torch.tensor([rollout.logprobs]), scores.logps, atol=1e-5, rtol=0)
