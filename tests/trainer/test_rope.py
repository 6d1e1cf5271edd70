# SPDX-License-Identifier: Apache-2.0
"""RoPE that depends on the length is said at the start when sequences can grow beyond where it changes."""

import logging

import pytest
import torch
from tiny import make_llama, make_policy
from transformers import LlamaConfig, LlamaForCausalLM

from minimind_hf.trainer.models.rope import changing_rope

ROPES = {
    "dynamic": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32},
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
    },
}


def make(kind: str):
    config = LlamaConfig(**{**make_llama().config.to_dict(), "rope_parameters": ROPES[kind]})
    config.max_position_embeddings = 128
    torch.manual_seed(0)
    return LlamaForCausalLM(config)


@pytest.mark.parametrize("kind", ROPES)
def test_lengths_beyond_the_original_context_are_said(make_trainer, caplog, kind):
    assert changing_rope(make(kind)) == (kind, 32)
    for lengths in ({"max_prompt_length": 25}, {}):  # of 25 and 8 tokens; of any length
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            make_trainer(make(kind), max_completion_length=8, **lengths)
        (said,) = [r.getMessage() for r in caplog.records if "frequencies" in r.getMessage()]
        assert repr(kind) in said and "max_completion_length (8)" in said and "at most 32" in said


@pytest.mark.parametrize("kind", ROPES)
def test_lengths_within_it_are_not(make_trainer, caplog, kind):
    with caplog.at_level(logging.WARNING):
        trainer = make_trainer(make(kind), scripted=False, max_prompt_length=24, max_completion_length=8, max_steps=1)
        trainer.train()
    assert not [r for r in caplog.records if "frequencies" in r.getMessage()]
    found = [e["sampling/sampling_logp_difference/max"] for e in trainer.state.log_history if "loss" in e]
    assert all(difference < 1e-4 for difference in found)


def test_other_rope_does_not_depend_on_the_length():
    assert changing_rope(make_policy()) is None
    assert changing_rope(make_policy(inference_rope_scaling=True)) is None  # YaRN is the same at every length
