# SPDX-License-Identifier: Apache-2.0
"""Which language is spoken, and a text in it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .chinese import CHINESE, REPORT

LANGUAGES = ("en", "zh")
AUTO = "auto"
_LOCALE = ("LC_ALL", "LC_MESSAGES", "LANG")  # in the order in which POSIX reads them
_spoken: ContextVar[str] = ContextVar("language", default="en")


def chosen(language: str = AUTO) -> str:
    """The language that a setting stands for: itself, or for `"auto"` that of the locale, if it is Chinese.

    Raises:
        ValueError: For another language.
    """
    if language in LANGUAGES:
        return language
    if language != AUTO:
        raise ValueError(f"language is {language!r}. Give one of: {', '.join((AUTO, *LANGUAGES))}.")
    locale = next((value for name in _LOCALE if (value := os.environ.get(name))), "")
    return "zh" if locale.lower().startswith("zh") else "en"


def language() -> str:
    """The language that is spoken now: `"en"`, unless the code runs within `speaking`."""
    return _spoken.get()


@contextmanager
def speaking(language: str) -> Iterator[None]:
    """Speaks a language in the block: one of `LANGUAGES`, or `"auto"`."""
    token = _spoken.set(chosen(language))
    try:
        yield
    finally:
        _spoken.reset(token)


def said(text: str, /, **values: Any) -> str:
    """A text in the language that is spoken now; in English where it has no translation.

    Args:
        text (`str`): In English. With values, a format string.
        values: What the format string names.
    """
    worded = CHINESE.get(text, text) if language() == "zh" else text
    return worded.format(**values) if values else worded


def texts_of_pages() -> dict[str, str]:
    """The texts of a page, by their English, for `said` in its scripts; empty for English."""
    return dict(REPORT) if language() == "zh" else {}


def sentences(*texts: str) -> str:
    """Sentences after each other: between Chinese ones is no space."""
    return ("" if language() == "zh" else " ").join(filter(None, texts))


class Text:
    """A text whose language is chosen when it is written out, by `str`: `Text("step {step}", step=3)`.

    Args:
        text (`str`), values: As for [`said`].
    """

    def __init__(self, text: str, /, **values: Any):
        self.text, self.values = text, values

    def __str__(self) -> str:
        return said(self.text, **self.values)


class Texts:
    """Several texts, joined when they are written out.

    Args:
        texts (`Text`): In order.
        between (`str`): What joins them, in English.
    """

    def __init__(self, *texts: Text, between: str = ", "):
        self.texts, self.between = texts, between

    def __str__(self) -> str:
        return said(self.between).join(map(str, self.texts))
