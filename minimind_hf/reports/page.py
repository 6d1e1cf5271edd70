# SPDX-License-Identifier: Apache-2.0
"""A run as one self-contained HTML page: curves, health messages, and early and late completions side by side;
episodes as conversations.

The page is `page.html.jinja`, filled in here. Everything is escaped but the charts, which are markup by themselves.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..atomic import whole_file
from .charts import charts_of, draw
from .episodes import conversation, failures_first, is_episode, pieces, told
from .record import RunRecord, read_run

REPORT_FILE = "report.html"

_TEMPLATES = Environment(
    loader=PackageLoader("minimind_hf", "reports"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    keep_trailing_newline=True,
)


def write_report(run_dir: str | Path, path: str | Path | None = None) -> Path:
    """Writes the report of a run. An earlier report stays as it is until the new one is complete.

    Args:
        run_dir (`str` or `Path`): The output folder of a run that has ended or saved a checkpoint.
        path (`str` or `Path`, *optional*): The page; `report.html` in the folder if unset.

    Returns:
        `Path`: The page.

    Raises:
        ValueError: If the folder contains no log of a run.
    """
    run = read_run(run_dir)
    path = Path(path) if path else Path(run_dir) / REPORT_FILE
    with whole_file(path) as unfinished:
        unfinished.write_text(render(run), encoding="utf-8")
    return path


def render(run: RunRecord) -> str:
    """The page as text."""
    return _TEMPLATES.get_template("page.html.jinja").render(
        title=run.name,
        subtitle=_subtitle(run),
        cards=list(_cards(run)),
        health=[[_cell(row.get(name, "")) for name in ("step", "rule", "message")] for row in run.health],
        charts=list(_charts(run)),
        samples=[(_sample(early), _sample(late)) for early, late in zip_longest(_shown(run.early), _shown(run.late))],
        has_episodes=any(map(is_episode, [*run.early, *run.late])),
        early_step=_step(run.early),
        late_step=_step(run.late),
        settings=[(name, _cell(value)) for name, value in run.settings.items()],
    )


def _subtitle(run: RunRecord) -> str:
    steps = max((log.get("step", 0) for log in run.history), default=0)
    parts = [run.algorithm, f"{steps} optimizer steps", f"written {datetime.now():%Y-%m-%d %H:%M}"]
    if (seconds := run.seconds) is not None:
        parts.insert(2, f"{seconds:.1f} seconds in rollouts, scoring, updates and evaluations")
    return " · ".join(part for part in parts if part)


def _cards(run: RunRecord) -> Iterator[dict[str, str]]:
    """The most important values: what they are now and what they were at the start."""
    names = {
        "reward": "reward",
        "eval_reward": "evaluation",
        "kl_ref": "KL to the reference",
        "completions/mean_length": "tokens per completion",
        "explained_variance": "explained variance",
        "tokens_per_second": "tokens per second",
    }
    for name, label in names.items():
        if values := list(run.series(name).values()):
            tenth = max(1, len(values) // 10)
            first, last = (sum(part) / tenth for part in (values[:tenth], values[-tenth:]))
            note = f"at the start {first:.3g}" if len(values) > 1 else ""
            yield {"label": label, "value": f"{last:.3g}", "note": note}
    before, after = (list(run.series(f"eval_accuracy_{when}").values()) for when in ("before", "after"))
    if before and after:
        yield {"label": "held-out accuracy", "value": f"{after[-1]:.1%}", "note": f"before {before[-1]:.1%}"}


def _charts(run: RunRecord) -> Iterator[dict[str, str]]:
    for chart in charts_of(run):
        yield {"title": chart.title, "note": chart.note, "svg": Markup(draw(chart, run))}


def _step(rows: Sequence[Mapping[str, Any]]) -> str:
    """The optimizer step that the rollout was drawn for, as logs count them."""
    return str(rows[0].get("step", "?")) if rows else "-"


def _shown(rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """The completions in the order of the page: as they were kept, episodes with failures first."""
    return failures_first(rows) if all(map(is_episode, rows)) else rows


def _sample(row: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if row is None:
        return None
    signals = ", ".join(f"{name} {_short(value)}" for name, value in (row.get("signals") or {}).items())
    parts = [f"reward {_short(row.get('reward'))} ({signals})", f"{row.get('tokens', '?')} tokens"]
    sample: dict[str, Any] = {"prompt": _text(row.get("prompt"))}
    if is_episode(row):
        parts.append(told(row))
        sample |= {"turns": [{**part, "reward": _short(part.get("reward"))} for part in conversation(row)]}
        sample |= {"pieces": pieces(row)}
    else:
        sample |= {"completion": _text(row.get("completion"))}
    if row.get("finish_reason") == "length":
        parts.append("cut off")
    return {**sample, "line": " · ".join(parts)}


def _text(value: Any) -> str:
    """A text as it is, messages with their roles; of a single answer only its content."""
    if not isinstance(value, list):
        return str(value)
    if len(value) == 1 and value[0].get("role") == "assistant":
        return str(value[0].get("content", ""))
    return "\n".join(f"{message.get('role')}: {message.get('content')}" for message in value)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) else "-"


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
