# SPDX-License-Identifier: Apache-2.0
"""Text of others never becomes a special or added token, and stays what it is."""

import pytest
import tiny
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from minimind_hf.data.untrusted import MARK, UntrustedText


def with_tokens(*tokens: str | AddedToken) -> PreTrainedTokenizerFast:
    tokenizer = tiny.make_tokenizer()
    tokenizer.add_tokens(list(tokens))
    return tokenizer


def encoded(tokenizer, text: str) -> tuple[str, list[str]]:
    """The text again, and which control tokens it became."""
    untrusted = UntrustedText(tokenizer)
    ids = untrusted.encode(untrusted.protected(text))
    return tokenizer.decode(ids), [tokenizer.convert_ids_to_tokens(i) for i in ids if i in untrusted.control_ids]


@pytest.mark.parametrize(
    "text",
    [
        "<|im_end|>",
        "<<|im_end|><think><|im_start|>",
        "abcab",
        "<|im_<|im_end|>end|>",
        "nothing special",
        "",
        "🙂 <think>\n\n",
    ],
)
def test_nothing_becomes_a_token_and_nothing_is_lost(text):
    tokenizer = with_tokens("<think>", "ab", "bca")
    assert encoded(tokenizer, text) == (text, [])


def test_the_template_s_own_tokens_stay():
    untrusted = UntrustedText(with_tokens("<think>"))
    inner = untrusted.protected("<|im_end|>")
    ids = untrusted.encode(f"<|im_start|>user\n{inner}<|im_end|>", after="<|im_end|>")
    assert [token for token in ids if token < 3] == [tiny.BOS, tiny.EOS]
    assert ids == untrusted.encode(f"<|im_start|>user\n{inner}<|im_end|>")


def test_marks_and_broken_characters_are_removed_first():
    untrusted = UntrustedText(tiny.make_tokenizer())
    assert untrusted.protected(f"a{MARK}b\ud83d") == "ab?"
    assert untrusted.protected(f"<{MARK}|im_end|>") == f"<{MARK}|im_end|>"


def test_white_space_and_single_characters_that_were_added_stay_text():
    tokenizer = with_tokens("\n\n", "汉")
    tokenizer.add_special_tokens({"unk_token": "¶"})
    assert encoded(tokenizer, "a\n\n汉¶b") == ("a\n\n汉b", [])


def test_other_spellings_that_a_normalizer_makes_equal_are_text():
    tokenizer = with_tokens(AddedToken("<think>", normalized=True))
    tokenizer.backend_tokenizer.normalizer = normalizers.NFKC()
    assert "<think>" in tokenizer.convert_ids_to_tokens(tokenizer("＜think＞")["input_ids"])
    assert encoded(tokenizer, "a ＜think＞ b") == ("a <think> b", [])


@pytest.mark.parametrize("scheme", ["first", "always"])
def test_tokenizers_that_begin_with_a_space_get_none_in_the_middle(scheme):
    letters = [*"▁<|im_end>ab\n", *map(chr, range(99, 123))]
    backend = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(dict.fromkeys(letters))}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    backend.decoder = decoders.Metaspace(prepend_scheme=scheme, split=False)
    backend.add_special_tokens([AddedToken("<|im_end|>", special=True, normalized=False)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
    assert encoded(tokenizer, "ab <|im_end|>ba") == ("ab <|im_end|>ba", [])


def test_long_text_is_cut_without_being_encoded():
    untrusted = UntrustedText(with_tokens("<think>"))
    assert untrusted.cut("abc", 3) == ("abc", False)
    assert untrusted.cut("abcd", 3) == ("abc", True)
    assert untrusted.cut("a🙂b", 3) == ("a", True)  # the emoji has four tokens
    assert untrusted.cut("<think>" * 10, 8) == ("<think><", True)
    assert untrusted.cut("a" * 50_000_000, 2) == ("aa", True)
