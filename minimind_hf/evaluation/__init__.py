# SPDX-License-Identifier: Apache-2.0
"""Evaluates models on held-out prompts: the rewards of training, with confidence intervals, and pass@k.

It may import everything but the commands and the chat. Settings are in `settings`, statistics in `estimates`, how
prompts are answered and episodes played in `answers` and `playing`, and what is printed in `tables`.
"""

from typing import TYPE_CHECKING

from ..lazy import lazy

if TYPE_CHECKING:
    from .answers import Answers, ExactMatch, answer_prompts
    from .estimates import Estimate, estimate, pass_at_k
    from .playing import agent_for, prompts_of
    from .settings import EpisodeSettings, EvalSettings, thinking_ratio_of
    from .tables import as_table, changes_table, summary

_LAZY = {
    "Answers": ".answers",
    "EpisodeSettings": ".settings",
    "Estimate": ".estimates",
    "EvalSettings": ".settings",
    "ExactMatch": ".answers",
    "agent_for": ".playing",
    "answer_prompts": ".answers",
    "as_table": ".tables",
    "changes_table": ".tables",
    "estimate": ".estimates",
    "pass_at_k": ".estimates",
    "prompts_of": ".playing",
    "summary": ".tables",
    "thinking_ratio_of": ".settings",
}

__all__ = [
    "Answers",
    "EpisodeSettings",
    "Estimate",
    "EvalSettings",
    "ExactMatch",
    "agent_for",
    "answer_prompts",
    "as_table",
    "changes_table",
    "estimate",
    "pass_at_k",
    "prompts_of",
    "summary",
    "thinking_ratio_of",
]

__getattr__, __dir__ = lazy(__name__, _LAZY)
