# SPDX-License-Identifier: Apache-2.0
"""The byte tokenizer of `tiny` with a chat template of one line, and tiny sequence classification models."""

import pytest
import tiny
import torch
from transformers import LlamaConfig, LlamaForSequenceClassification, PreTrainedTokenizerFast

CHAT_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = tiny.make_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


@pytest.fixture
def make_classifier():
    def make(num_labels: int = 1) -> LlamaForSequenceClassification:
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=259,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            num_labels=num_labels,
            bos_token_id=1,
            eos_token_id=2,
        )
        model = LlamaForSequenceClassification(config)
        # A freshly made head gives scores near 0, which would hide differences.
        torch.nn.init.normal_(model.score.weight)
        return model

    return make
