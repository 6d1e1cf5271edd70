# SPDX-License-Identifier: Apache-2.0
"""A tiny tokenizer with a chat template and tiny sequence classification models, built on the spot."""

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForSequenceClassification, PreTrainedTokenizerFast

SPECIALS = ("<pad>", "<s>", "</s>")
CHAT_TEMPLATE = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}"


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate([*SPECIALS, *alphabet])}, merges=[]))
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIALS])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>", model_max_length=10**30
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


@pytest.fixture
def make_classifier():
    def make(num_labels: int = 1, scale: float = 1.0) -> LlamaForSequenceClassification:
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=259, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=256, num_labels=num_labels, pad_token_id=None,
            bos_token_id=1, eos_token_id=2,
        )  # fmt: skip
        model = LlamaForSequenceClassification(config)
        # A freshly made head gives scores near 0, which would hide differences.
        torch.nn.init.normal_(model.score.weight, std=scale)
        return model

    return make
