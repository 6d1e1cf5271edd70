# SPDX-License-Identifier: Apache-2.0
"""Settings of what a run says: health messages, completions on the terminal and in files, debug output."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from ...bounds import Bounds, Count
from ...language import AUTO, LANGUAGES

LANGUAGE_HELP = (
    "What health messages, progress, last lines and report.html are written in: 'en', 'zh', or 'auto' for Chinese "
    "where the locale is (LC_ALL, LC_MESSAGES, LANG). Errors stay English."
)
Language = Annotated[str, Bounds(choices=(AUTO, *LANGUAGES))]


def _field(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass
class LogSettings:
    """What a run says, besides its curves. See each field's help."""

    health: bool = _field(
        True, "Say in one line what seems to go wrong and what to try; stop before an update that is not finite."
    )
    language: Language = _field(AUTO, LANGUAGE_HELP)
    log_completions: bool = _field(
        False,
        "At each log, write completions to OUTPUT_DIR/completions as jsonl, and send them to those trackers of "
        "report_to that have tables (wandb, trackio, swanlab). Every completions_interval steps, print a table.",
    )
    completions_interval: Count = _field(10, "Steps between two tables of completions on the terminal.")
    num_completions_to_print: Count | None = _field(None, "Rows of that table. Unset: all.")
    log_unique_prompts: bool = _field(False, "One row per prompt in that table.")
    debug_mode: bool = _field(
        False, "Print prompts with all their completions and rewards every debug_interval steps, at the next rollout."
    )
    debug_interval: Count = _field(20, "Steps between two debug prints.")
