# SPDX-License-Identifier: Apache-2.0
"""A byte-level tokenizer with a chat template of MiniMind's shape, built on the spot.

Every byte is one token, so that the expected ids of a text can be counted by hand: specials first, then the bytes.
"""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIALS = ("<pad>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% if tools %}TOOLS {{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if THINKING is defined and THINKING is true %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def build_tokenizer(thinking_argument: str | None = "open_thinking", **kwargs) -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*SPECIALS, *alphabet])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIALS])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    settings = {"pad_token": "<pad>", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"} | kwargs
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **settings)
    tokenizer.chat_template = CHAT_TEMPLATE.replace("THINKING", thinking_argument or "no_such_argument")
    return tokenizer


@pytest.fixture
def make_tokenizer():
    return build_tokenizer


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer()
