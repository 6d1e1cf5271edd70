# SPDX-License-Identifier: Apache-2.0
"""A run as one HTML page that needs nothing else: curves, health, and completions early and late side by side."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from itertools import zip_longest
from pathlib import Path
from string import Template
from typing import Any

from .charts import charts_of, draw
from .record import RunRecord, read_run

REPORT_FILE = "report.html"

_PAGE = Template("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>$title</title>
<style>
body { font: 15px/1.5 system-ui, "Noto Sans", "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", sans-serif;
  color: #1c1c1c; background: #fff; max-width: 1180px; margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.7rem; margin-bottom: 0.2rem; } h2 { font-size: 1.2rem; margin: 2rem 0 0.6rem; }
.muted { color: #5a5a5a; }
.cards, .charts { display: grid; gap: 1rem; }
.cards { grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); }
.charts { grid-template-columns: repeat(auto-fit, minmax(430px, 1fr)); }
.card, figure { border: 1px solid #d0d0d0; border-radius: 6px; padding: 0.7rem 0.9rem; margin: 0; }
.card b { display: block; font-size: 1.25rem; }
figure { break-inside: avoid; } figure svg { width: 100%; height: auto; }
figcaption b { display: block; } figcaption span { font-size: 0.86em; color: #5a5a5a; }
table { border-collapse: collapse; width: 100%; font-size: 0.9em; }
th, td { border-bottom: 1px solid #d8d8d8; padding: 0.35rem 0.5rem; text-align: left; vertical-align: top; }
tr { break-inside: avoid; } .samples th, .samples td { width: 50%; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0.2rem 0; font: 0.86em/1.45 ui-monospace, monospace; }
.prompt { background: #f3f3f3; } .good { color: #176636; } .warn { color: #9a2d1c; font-weight: 600; }
@media print { body { margin: 0; max-width: none; font-size: 11px; } details { display: none; }
  .charts { grid-template-columns: 1fr 1fr; } }
</style>
</head>
<body>
<h1>$title</h1>
<p class="muted">$subtitle</p>
<div class="cards">$cards</div>
<h2>Health</h2>
$health
<h2>Curves</h2>
<div class="charts">$charts</div>
<h2>Completions, early and late</h2>
$samples
<h2>Settings</h2>
<details><summary>$num_settings settings</summary>$settings</details>
</body>
</html>
""")


def write_report(run_dir: str | Path, path: str | Path | None = None) -> Path:
    """Writes the report of a run.

    Args:
        run_dir (`str` or `Path`): The output folder of a run that has ended or saved a checkpoint.
        path (`str` or `Path`, *optional*): The page; `report.html` in the folder if unset.

    Returns:
        `Path`: The page.

    Raises:
        ValueError: If the folder holds no log of a run.
    """
    run = read_run(run_dir)
    path = Path(path) if path else Path(run_dir) / REPORT_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(run), encoding="utf-8")
    return path


def render(run: RunRecord) -> str:
    """The page as text."""
    return _PAGE.substitute(
        title=escape(run.name),
        subtitle=_subtitle(run),
        cards="".join(_card(*card) for card in _headline(run)),
        health=_health(run.health),
        charts="".join(_charts(run)),
        samples=_samples(run),
        num_settings=len(run.settings),
        settings=_table(("setting", "value"), run.settings.items()),
    )


def _subtitle(run: RunRecord) -> str:
    steps = max((log.get("step", 0) for log in run.history), default=0)
    parts = [run.algorithm, f"{steps} optimizer steps", f"written {datetime.now():%Y-%m-%d %H:%M}"]
    if (seconds := run.seconds) is not None:
        parts.insert(2, f"{seconds:.1f} seconds in rollouts, scoring, updates and evaluations")
    return escape(" · ".join(part for part in parts if part))


def _headline(run: RunRecord) -> Iterable[tuple[str, str, str]]:
    """Name, last value and where it began, of what matters most."""
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
            yield label, f"{last:.3g}", f"at first {first:.3g}" if len(values) > 1 else ""
    accuracy = [list(run.series(f"eval_accuracy_{when}").values()) for when in ("before", "after")]
    if all(accuracy):
        yield "held-out accuracy", f"{accuracy[1][-1]:.1%}", f"before {accuracy[0][-1]:.1%}"


def _card(label: str, value: str, note: str) -> str:
    label, value, note = escape(label), escape(value), escape(note)
    return f'<div class="card">{label}<b>{value}</b><span class="muted">{note}</span></div>'


def _health(messages: Sequence[Mapping[str, Any]]) -> str:
    if not messages:
        return '<p class="good">No message of the health check.</p>'
    rows = ((row.get("step", ""), row.get("rule", ""), row.get("message", "")) for row in messages)
    return _table(("step", "rule", "what is wrong, and what to try"), rows)


def _charts(run: RunRecord) -> Iterable[str]:
    for chart in charts_of(run):
        title, note = escape(chart.title), escape(chart.note)
        yield f"<figure><figcaption><b>{title}</b><span>{note}</span></figcaption>{draw(chart, run)}</figure>"


def _samples(run: RunRecord) -> str:
    if not run.early and not run.late:
        return '<p class="muted">No completions were kept: the folder holds no samples/*.jsonl.</p>'
    cells = "".join(
        f"<tr><td>{_sample(early)}</td><td>{_sample(late)}</td></tr>"
        for early, late in zip_longest(run.early, run.late)
    )
    heads = "".join(
        f"<th>{name}, step {_step(rows)}</th>" for name, rows in (("Early", run.early), ("Late", run.late))
    )
    return f'<table class="samples"><thead><tr>{heads}</tr></thead><tbody>{cells}</tbody></table>'


def _step(rows: Sequence[Mapping[str, Any]]) -> str:
    """The optimizer step that the rollout was drawn for, as logs count them."""
    return str(rows[0].get("step", "?")) if rows else "-"


def _sample(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    signals = ", ".join(f"{name} {_short(value)}" for name, value in (row.get("signals") or {}).items())
    ending = " · cut" if row.get("finish_reason") == "length" else ""
    line = f"reward {_short(row.get('reward'))} ({signals}) · {row.get('tokens', '?')} tokens{ending}"
    prompt, completion = (escape(_text(row.get(key))) for key in ("prompt", "completion"))
    return f'<pre class="prompt">{prompt}</pre><pre>{completion}</pre><span class="muted">{escape(line)}</span>'


def _text(value: Any) -> str:
    """A text, or messages with their roles; of a completion only what was said."""
    if not isinstance(value, list):
        return str(value)
    if len(value) == 1 and value[0].get("role") == "assistant":
        return str(value[0].get("content", ""))
    return "\n".join(f"{message.get('role')}: {message.get('content')}" for message in value)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) else "-"


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    heads = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(_cell(value))}</td>" for value in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
