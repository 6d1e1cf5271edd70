# SPDX-License-Identifier: Apache-2.0
"""The languages in which a run speaks to people: English, and Chinese.

A text is written in English where it is used, as a format string: `said("step {step}", step=3)`. `chinese/` has the
Chinese of each; tests/test_language.py finds what is missing there, and what nothing uses any more. Errors, the help
of flags and the names of settings and metrics stay English, so that they can be searched for. The language is chosen
with `speaking`, around the code that says something. This room imports nothing of the project.
"""

from .speech import AUTO, LANGUAGES, Text, Texts, chosen, language, said, sentences, speaking, texts_of_pages

__all__ = [
    "AUTO",
    "LANGUAGES",
    "Text",
    "Texts",
    "chosen",
    "language",
    "said",
    "sentences",
    "speaking",
    "texts_of_pages",
]
