# SPDX-License-Identifier: Apache-2.0
"""Text of tools and environments, encoded so that it can never become a special or added token.

What a tool returns goes through the chat template like any other content, and an `<|im_end|>` in it would end the
message, or a `</think>` the thought, in ids that the model cannot tell from real ones. So a mark is put after the
first character of every such string before rendering, the rendered text is cut at the marks, and the pieces are
encoded one by one. The mark is a noncharacter of Unicode, which no text may hold.
"""

import re

from transformers import PreTrainedTokenizerBase

MARK = "\ufdd0"
_NONCHARACTERS = re.compile("[\ufdd0-\ufdef]")
_LONGEST_TOKEN = 64  # characters; longer ones are runs of white space


class UntrustedText:
    """Protects text of others for one tokenizer.

    Added tokens that are white space or one ordinary character stay: they say nothing that text does not say.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The policy's tokenizer.

    Attributes:
        control_ids (`frozenset[int]`): The ids that protected text never becomes.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self._tokenizer = tokenizer
        added = tokenizer.get_added_vocab() | dict(
            zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True)
        )
        tokens = sorted((token for token in added if token and not token.isspace()), key=len, reverse=True)
        self._long = [token for token in tokens if len(token) > 1]
        self._dropped = {token for token in tokens if len(token) == 1} & set(tokenizer.all_special_tokens)
        self.control_ids = frozenset(added[token] for token in (*self._long, *self._dropped))
        self._occurrence = _beginnings(self._long)
        self._normalizes = _normalizes_added_tokens(tokenizer)
        self._needs_context = tokenizer.decode(self._ids("a") + self._ids("b")) != "ab"

    def protected(self, text: str) -> str:
        """Returns the text with a mark in each string that would be an added token.

        Args:
            text (`str`): What a tool or an environment said. Noncharacters and halves of surrogate pairs go.
        """
        text = _NONCHARACTERS.sub("", text).encode("utf-8", "replace").decode("utf-8")
        for token in self._dropped:
            text = text.replace(token, "")
        if self._occurrence is not None:
            text = self._occurrence.sub(rf"\g<0>{MARK}", text)
        if self._normalizes:
            text = MARK.join(self._taken_apart(piece) for piece in text.split(MARK))
        return text

    def encode(self, text: str, after: str = "") -> list[int]:
        """Encodes rendered text, special tokens of the template included, but nothing that is marked.

        Args:
            text (`str`): Text with marks, see `protected`.
            after (`str`, *optional*, defaults to `""`): An added token that stands before the text.

        Returns:
            `list[int]`: The ids, without that of `after`.
        """
        first, *others = text.split(MARK)
        ids = self._ids(after + first)
        return ids[len(self._ids(after)) if after else 0 :] + self.encode_pieces(others)

    def encode_pieces(self, pieces: list[str]) -> list[int]:
        """Encodes what stands between and after marks, each piece as the continuation of a text."""
        return [token for piece in pieces for token in self._continuing(piece)]

    def cut(self, text: str, limit: int) -> tuple[str, bool]:
        """Shortens text that has more tokens than a limit, without encoding what is far beyond it.

        Args:
            text (`str`): Text of any length, without marks.
            limit (`int`): Largest number of token ids.

        Returns:
            `tuple[str, bool]`: The beginning, and whether something is missing.
        """
        beginning = text[: limit * _LONGEST_TOKEN]
        ids = self.encode(self.protected(beginning))
        if len(ids) <= limit:
            return beginning, len(beginning) < len(text)
        return self._tokenizer.decode(ids[:limit], clean_up_tokenization_spaces=False).rstrip("\ufffd"), True

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False)["input_ids"] if text else []

    def _continuing(self, piece: str) -> list[int]:
        # Some tokenizers put a space before every text, unless it goes on from a line.
        if not self._needs_context or not piece:
            return self._ids(piece)
        line, ids = self._ids("\n"), self._ids("\n" + piece)
        return ids[len(line) :] if ids[: len(line)] == line else self._ids(piece)

    def _taken_apart(self, piece: str) -> str:
        return piece if self.control_ids.isdisjoint(self._ids(piece)) else MARK.join(piece)


def _beginnings(tokens: list[str]) -> re.Pattern | None:
    """Matches the first character of each occurrence, overlapping ones included."""
    if not tokens:
        return None
    first = "".join(sorted({re.escape(token[0]) for token in tokens}))
    return re.compile(f"(?=[{first}])(?=(?:{'|'.join(map(re.escape, tokens))})).", re.DOTALL)


def _normalizes_added_tokens(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether other spellings of an added token, full-width letters say, can become it."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return True
    return backend.normalizer is not None and any(t.normalized for t in tokenizer.added_tokens_decoder.values())
