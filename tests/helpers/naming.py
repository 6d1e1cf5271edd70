# SPDX-License-Identifier: Apache-2.0
"""What errors and warnings are tested by: the settings, values, files and commands that they name, not their prose."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def raises_naming(expected: type[BaseException] | tuple[type[BaseException], ...], *pieces: object) -> Iterator:
    """Like `pytest.raises`, and the message has to name each piece.

    Args:
        expected: The type of the error, or several.
        pieces: At least one: names of settings, their values, paths, commands. Where those of another error of
            that type would be the same, a word that only this one can hold.
    """
    __tracebackhide__ = True
    if not pieces:
        raise TypeError("raises_naming needs a piece of the message; for none use pytest.raises")
    with pytest.raises(expected) as raised:
        yield raised
    assert_names(str(raised.value), *pieces)


def assert_names(text: str, *pieces: object) -> None:
    """Each piece stands in the text, by itself and not as part of a longer name or number."""
    __tracebackhide__ = True
    missing = [piece for piece in pieces if not names(text, piece)]
    assert not missing, f"{missing} not named in: {text}"


def names(text: str, piece: object) -> bool:
    piece = str(piece)
    before = r"(?<!\w)" if re.match(r"\w", piece) else ""
    after = r"(?!\w)" if re.search(r"\w$", piece) else ""
    if re.search(r"\d$", piece):
        after += r"(?!\.\d)"  # 1 is not named by 1.5
    if re.match(r"\d", piece):
        before += r"(?<!\d\.)(?<!-)"  # nor 5, nor by -1
    return re.search(before + re.escape(piece) + after, text) is not None
