# SPDX-License-Identifier: Apache-2.0
"""How the model card and reports present an algorithm."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Algorithm:
    """How an algorithm is presented.

    Args:
        label (`str`): Its name.
        paper (`str`, *optional*), arxiv (`str`, *optional*): Title and arXiv number of its source.
        kind (`str`): A tag of the Hub.
    """

    label: str
    paper: str | None = None
    arxiv: str | None = None
    kind: str = "reinforcement-learning"
