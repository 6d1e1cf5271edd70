# SPDX-License-Identifier: Apache-2.0
"""The models and lengths that `gpu.py` measures: random weights, so that nothing is downloaded."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from step_time import make_tokenizer
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from minimind_hf import MiniMindConfig, MiniMindForCausalLM

__all__ = ["QUICK", "SIZES", "Shape", "make_tokenizer"]


@dataclass(frozen=True)
class Shape:
    """A model, and the rollout that is measured with it.

    Args:
        make (`Callable`): Makes the model.
        prompt (`int`), completion (`int`): Tokens.
        prompts (`int`), group (`int`): How many prompts, and completions of each.
        steps (`int`): Steps that count, after one that warms up.
        dtype (`torch.dtype`): In which rollouts are computed; steps are computed in the same by autocast.
    """

    make: Callable[[], PreTrainedModel]
    prompt: int = 256
    completion: int = 1024
    prompts: int = 2
    group: int = 6
    steps: int = 3
    dtype: torch.dtype = torch.bfloat16

    @property
    def rows(self) -> int:
        return self.prompts * self.group

    def model(self) -> PreTrainedModel:
        """The model in float32 with random weights, the same at each call; it never says EOS by itself."""
        torch.manual_seed(0)
        model = self.make().eval()
        model.generation_config.eos_token_id = None
        return model

    def prompt_ids(self, vocab_size: int) -> list[list[int]]:
        """The prompts, none of whose tokens is special."""
        draw = random.Random(0)
        return [[draw.randrange(3, min(vocab_size, 97)) for _ in range(self.prompt)] for _ in range(self.prompts)]


def minimind(hidden: int, layers: int, intermediate: int) -> Callable[[], PreTrainedModel]:
    return lambda: MiniMindForCausalLM(
        MiniMindConfig(
            hidden_size=hidden,
            intermediate_size=intermediate,
            num_hidden_layers=layers,
            num_attention_heads=8,
            num_key_value_heads=2 if hidden <= 512 else 4,
        )
    )


def llama(hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int) -> Callable[[], PreTrainedModel]:
    return lambda: LlamaForCausalLM(
        LlamaConfig(
            vocab_size=49152,
            hidden_size=hidden,
            intermediate_size=intermediate,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            tie_word_embeddings=True,
        )
    )


def qwen3(hidden: int, layers: int, intermediate: int) -> Callable[[], PreTrainedModel]:
    return lambda: Qwen3ForCausalLM(
        Qwen3Config(
            hidden_size=hidden,
            intermediate_size=intermediate,
            num_hidden_layers=layers,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=128,
            tie_word_embeddings=True,
        )
    )


SIZES = {
    "26M": Shape(minimind(512, 8, 1408)),
    "64M": Shape(minimind(768, 8, 2432)),
    "135M": Shape(llama(576, 30, 9, 3, 1536)),
    "0.6B": Shape(qwen3(1024, 28, 3072)),
}
QUICK = {
    "tiny": Shape(minimind(64, 2, 192), prompt=16, completion=12, steps=1, dtype=torch.float32),
    "tiny Llama": Shape(llama(64, 2, 4, 2, 96), prompt=16, completion=12, steps=1, dtype=torch.float32),
}
