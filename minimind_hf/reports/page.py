# SPDX-License-Identifier: Apache-2.0
"""One run, or several compared, as one self-contained HTML page that needs no network.

The page is `page.html.jinja`, filled in here; what its scripts draw is packed into it (see `packed`). Everything is
escaped but the scripts and the style sheet of this project.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..atomic import whole_file
from ..language import AUTO, language, said, sentences, speaking, texts_of_pages
from .curves import chart_data, zero_everywhere
from .histograms import histograms
from .packed import ROOM_FOR_TOKENS, asset, fitted, packed_json, plotting_library
from .people import counted, date, date_again, duration, millions
from .probes import probes_of
from .record import FROM_DATA, FROM_ROLLOUTS, RunRecord, read_run
from .results import cards, settings_that_differ, table
from .rows import as_text, rows_of
from .samples import early_and_late

REPORT_FILE = "report.html"
LOGS_OF_FIRST_CHECKS = 5  # how many steps must be logged before the first health checks can find anything
CHOSEN = {  # which completions are kept token by token, by the number that they are chosen by
    "advantage": "Completions of some rollouts with the lowest and the highest advantages, with the numbers that the "
    "update computed last.",
    "reward": "Completions of some rollouts with the lowest and the highest rewards, with the numbers that the "
    "update computed last.",
    "": "Completions of some rollouts, with the numbers that the update computed last.",
}
_SCRIPTS = ("unpack.js", "stacking.js", "charts.js", "rows.js", "tokens.js")
_TAGS = {"en": "en", "zh": "zh-CN"}  # for browsers, which choose the font of Chinese letters by it

_TEMPLATES = Environment(
    loader=PackageLoader("minimind_hf", "reports"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def write_report(
    run_dir: str | Path | Sequence[str | Path],
    path: str | Path | None = None,
    refresh: int | None = None,
    language: str = AUTO,
) -> Path:
    """Writes the report of a run, or of several on one page. An earlier report stays until the new one is complete.

    Args:
        run_dir (`str`, `Path` or a list of them): The output folder of a run, which may still be running; or several.
        path (`str` or `Path`, *optional*): The page; `report.html` in the folder of a single run if unset.
        refresh (`int`, *optional*): Seconds after which a browser that shows the page loads it again.
        language (`str`): `"en"`, `"zh"`, or `"auto"` for that of the locale.

    Returns:
        `Path`: The page.

    Raises:
        ValueError: If a folder contains no log of a run, there is none, or several and no path.
    """
    folders = [run_dir] if isinstance(run_dir, str | Path) else list(run_dir)
    if not folders or (len(folders) > 1 and path is None):
        raise ValueError(f"There are {len(folders)} runs and path is {path}. Give one run, or several and a path.")
    runs = [read_run(folder) for folder in folders]
    path = Path(path) if path else Path(folders[0]) / REPORT_FILE
    with whole_file(path) as unfinished, speaking(language):
        unfinished.write_text(render(*runs, refresh=refresh), encoding="utf-8")
    return path


def render(*runs: RunRecord, refresh: int | None = None) -> str:
    """The page as text, in the language that is spoken: of one run, or of several that are compared."""
    labels = labels_of(runs)
    data, rows, alone = chart_data(runs, labels), rows_of(runs, labels), len(runs) == 1
    data["charts"] += histograms(runs[0]) if alone else []
    return _TEMPLATES.get_template("page.html.jinja").render(
        title=runs[0].name if alone else said("{count} runs compared", count=len(runs)),
        subtitle=_subtitle(runs),
        run=runs[0] if alone else None,
        ending=_ending(runs[0].error) if alone and runs[0].error else "",
        cards=list(cards(runs[0])) if alone else [],
        about=_about(runs[0]) if alone else [],
        results=None if alone else table(runs, labels),
        different=None if alone else _different(runs, labels),
        checked=any(run.learns_from == FROM_ROLLOUTS for run in runs),
        health=_health(runs, labels),
        unchecked=_unchecked(runs, labels),
        charts=list(enumerate(data["charts"])),
        axes=data["axes"],
        zero=zero_everywhere(runs),
        samples=early_and_late(runs[0]) if alone and runs[0].learns_from == FROM_ROLLOUTS else None,
        probes=probes_of(runs[0]) if alone else None,
        tokens=_tokens(runs[0]) if alone else None,
        rows=rows,
        labels=labels,
        settings=_settings(runs[0]) if alone else ([], []),
        refresh=refresh,
        library=plotting_library(),
        data=packed_json(data),
        style=Markup(asset("page.css")),
        said=said,
        sentences=sentences,
        language=_TAGS[language()],
        texts=texts_of_pages(),
        scripts=Markup("\n".join(map(asset, _SCRIPTS))),
    )


def labels_of(runs: Sequence[RunRecord]) -> list[str]:
    """What the runs are called: their names, numbered where two have the same one."""
    names = [run.name for run in runs]
    return [name if names.count(name) == 1 else f"{name} ({place})" for place, name in enumerate(names, 1)]


def _subtitle(runs: Sequence[RunRecord]) -> str:
    written = said("written {date}", date=date(datetime.now()))
    if len(runs) > 1:
        return f"{', '.join(dict.fromkeys(str(run.algorithm) for run in runs))} · {written}"
    run = runs[0]
    parts = [run.algorithm, counted(run.steps, "optimizer step"), written]
    if (seconds := run.seconds) is not None:
        text = (
            "{time} in updates and evaluations"
            if run.learns_from == FROM_DATA
            else "{time} in rollouts, scoring, updates and evaluations"
        )
        parts.insert(2, said(text, time=duration(seconds)))
    return " · ".join(part for part in parts if part)


def _ending(error: Mapping[str, Any]) -> str:
    """How a run ended that did not come to its last step."""
    step, kind, message = error["step"], error["type"], error.get("message", "")
    if kind == KeyboardInterrupt.__name__:
        return said("The run was interrupted at step {step} (Ctrl-C).", step=step)
    if not message:
        return said("The run ended at step {step} with {type}.", step=step, type=kind)
    return said("The run ended at step {step} with {type}: {message}", step=step, type=kind, message=message)


def _about(run: RunRecord) -> list[tuple[str, str]]:
    """What the run was: machine, versions, command line, size of the model, date."""
    about = run.about
    parameters, trainable = about.get("parameters"), about.get("trainable_parameters")
    size = said("{count} parameters", count=millions(parameters)) if isinstance(parameters, int) else None
    if size and isinstance(trainable, int) and trainable != parameters:
        size += said(", {count} of them trained", count=millions(trainable))
    versions = ", ".join(f"{name} {version}" for name, version in (about.get("versions") or {}).items())
    found = {
        said("model"): ", ".join(filter(None, (str(run.settings.get("model", "")), size))),
        said("started"): date_again(str(about.get("started", ""))),
        said("machine"): about.get("machine"),
        said("versions"): versions,
        said("command line"): about.get("command"),
    }
    return [(name, str(value)) for name, value in found.items() if value]


def _tokens(run: RunRecord) -> dict[str, str] | None:
    """The completions that were kept token by token: `data`, packed, and by what they are `chosen`, in a sentence."""
    rows = [{**row, "prompt": as_text(row.get("prompt"))} for row in run.tokens]
    name = next((name for name in CHOSEN if any(row.get(name) is not None for row in rows)), "")
    return {"data": fitted(rows, ROOM_FOR_TOKENS)[0], "chosen": said(CHOSEN[name])} if rows else None


def _health(runs: Sequence[RunRecord], labels: Sequence[str]) -> list[list[str]]:
    own = [[] if len(runs) == 1 else [label] for label in labels]
    return [
        [*first, _cell(row.get("step", "")), _cell(row.get("rule", "")), _message(row)]
        for run, first in zip(runs, own, strict=True)
        for row in run.health
    ]


def _unchecked(runs: Sequence[RunRecord], labels: Sequence[str]) -> list[str]:
    """A sentence for each run that is too short for its health checks."""
    text = "Only {steps} logged: most checks have no data yet (the first need {needed})."
    found = []
    for run, label in zip(runs, labels, strict=True):
        count = len(run.series("loss"))
        if count < LOGS_OF_FIRST_CHECKS and run.learns_from == FROM_ROLLOUTS:
            sentence = said(text, steps=counted(count, "optimizer step"), needed=LOGS_OF_FIRST_CHECKS)
            found.append(sentence if len(runs) == 1 else label + said(": ") + sentence)
    return found


def _message(row: dict[str, Any]) -> str:
    """A message of the health check; runs before 0.2 wrote it in English alone."""
    return str((row.get("texts") or {}).get(language()) or row.get("message", ""))


def _settings(run: RunRecord) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The settings that the user gave, and the others."""
    given = [(name, _cell(value)) for name, value in run.changed.items()]
    others = [(name, _cell(value)) for name, value in run.settings.items() if name not in run.changed]
    return given, others


def _different(runs: Sequence[RunRecord], labels: Sequence[str]) -> dict[str, Any]:
    """The settings that differ: `head`, `common` (of all runs) and `single` (of single algorithms)."""
    head, rows = settings_that_differ(runs, labels)
    written = [[_cell(cell) for cell in row] for row in rows]
    return {
        "head": head,
        "common": [row for row in written if "-" not in row],
        "single": [row for row in written if "-" in row],
    }


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
