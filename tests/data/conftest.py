# SPDX-License-Identifier: Apache-2.0
"""The byte tokenizer of `tiny`, with the variations that prompts care about.

Every byte is one token, so that the expected ids of a text can be counted by hand: specials first, then the bytes.
"""

import pytest
import tiny
from transformers import PreTrainedTokenizerFast


@pytest.fixture
def make_tokenizer():
    def make(thinking_argument: str = "open_thinking") -> PreTrainedTokenizerFast:
        tokenizer = tiny.make_tokenizer()
        tokenizer.chat_template = tokenizer.chat_template.replace("open_thinking", thinking_argument)
        return tokenizer

    return make


@pytest.fixture
def tokenizer(make_tokenizer) -> PreTrainedTokenizerFast:
    return make_tokenizer()
