# SPDX-License-Identifier: Apache-2.0
"""The files that a run leaves in its folder for people to read later: how they are written and read.

trainer_state.json               the log history (at the end, and in every checkpoint)
log.jsonl                        the same, written while the run goes on
run.json                         algorithm, settings, machine, versions, command line
error.json                       the error that ended the run, if one did
samples/early.jsonl, late.jsonl  a few completions of the first and of the last rollout
samples/distributions.jsonl      histograms of rewards and lengths, one log per line
samples/probes.jsonl             answers to the probe prompts, with probe_prompts
samples/tokens.jsonl             a few completions token by token
completions/*.jsonl              all completions, with log_completions
health.jsonl                     messages of the health checks, one {"step", "rule", "message"} per line
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from ..atomic import whole_file
from .episodes import chosen, is_episode

RUN_FILE = "run.json"
STATE_FILE = "trainer_state.json"
HEALTH_FILE = "health.jsonl"
ERROR_FILE = "error.json"
LOG_FILE = "log.jsonl"
COMPLETIONS_FOLDER, SAMPLES_FOLDER = "completions", "samples"
EARLY, LATE = "early.jsonl", "late.jsonl"
DISTRIBUTIONS, PROBES, TOKENS = "distributions.jsonl", "probes.jsonl", "tokens.jsonl"
NUM_SAMPLES = 6
FROM_ROLLOUTS, FROM_DATA = "rollouts", "data"  # what a run learns from: what it samples, or given texts


@dataclass(frozen=True)
class RunRecord:
    """A run, as its folder describes it.

    Args:
        name (`str`): Its `run_name`, or the name of its folder.
        history (`list[dict]`): The Trainer's log history.
        algorithm (`str`, *optional*): `"CISPO"`, ...
        settings (`dict`): The settings that shape the result.
        changed (`dict`): The settings that the user gave.
        about (`dict`): `command`, `machine`, `versions`, `parameters`, `started`, `held_out_prompts`; what is known.
        weights (`dict[str, float]`): Of the reward functions.
        early (`list[dict]`), late (`list[dict]`): Completions of the first and of the last rollout.
        health (`list[dict]`): Messages of the health checks.
        distributions (`list[dict]`): Histograms of rewards and lengths by step.
        probes (`list[dict]`): Answers to the probe prompts.
        tokens (`list[dict]`): Completions token by token.
        folder (`Path`, *optional*): Where its completions are.
        error (`dict`): The error that ended the run.
        learns_from (`str`): `"rollouts"`, or `"data"` for given texts.
    """

    name: str
    history: list[dict[str, Any]]
    algorithm: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    changed: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    early: list[dict[str, Any]] = field(default_factory=list)
    late: list[dict[str, Any]] = field(default_factory=list)
    health: list[dict[str, Any]] = field(default_factory=list)
    distributions: list[dict[str, Any]] = field(default_factory=list)
    probes: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[dict[str, Any]] = field(default_factory=list)
    folder: Path | None = None
    error: dict[str, Any] = field(default_factory=dict)
    learns_from: str = FROM_ROLLOUTS

    def series(self, name: str) -> dict[int, float]:
        """Logged values by step. If a resume repeated a step, its later log counts."""
        return series(self.history, name)

    @property
    def steps(self) -> int:
        """Optimizer steps done."""
        return max((log["step"] for log in self.history), default=0)

    @property
    def seconds(self) -> float | None:
        """Time of all logged steps and evaluations, before and after any resume; `None` if none was measured.

        `train_runtime` covers only the time since the last resume, and a run that was killed has none.
        """
        runtimes = [name for name in self.logged_names if re.fullmatch(r"eval_(.+_)?runtime", name)]
        evaluations = sum(sum(self.series(name).values()) for name in runtimes)
        of_steps = self.seconds_by_step
        return evaluations + list(of_steps.values())[-1] if of_steps else None

    @property
    def seconds_by_step(self) -> dict[int, float]:
        """Time in rollouts, scoring and updates up to each logged step, without evaluations."""
        phases = [self.series(name) for name in self.logged_names if name.startswith("seconds/")]
        steps = sorted({step for phase in phases for step in phase})
        spans = zip([0, *steps], steps, strict=False)  # a log has means over the steps since the previous log
        seconds = ((end - start) * sum(phase.get(end, 0.0) for phase in phases) for start, end in spans)
        return dict(zip(steps, accumulate(seconds), strict=True))

    @cached_property
    def logged_names(self) -> list[str]:
        """The names of all logged numbers, in the order of their first log."""
        names = (name for log in self.history for name, value in log.items() if isinstance(value, int | float))
        return [name for name in dict.fromkeys(names) if name not in ("step", "epoch")]


def series(log_history: Sequence[Mapping[str, Any]], name: str) -> dict[int, float]:
    """Values of a logged name by step. If a resume repeated a step, its later log counts."""
    return dict(
        sorted({log["step"]: log[name] for log in log_history if isinstance(log.get(name), int | float)}.items())
    )


def read_run(folder: str | Path) -> RunRecord:
    """Reads a run from its folder, even while it is still running.

    Raises:
        ValueError: If the folder contains no log of a run, or a broken file.
    """
    folder = Path(folder)
    history = _log_history(_newest_log(folder))
    run, error = (_read_json(path) if path.is_file() else {} for path in (folder / RUN_FILE, folder / ERROR_FILE))
    early, late = _samples(folder)
    return RunRecord(
        name=run.get("about", {}).get("run_name") or folder.resolve().name,
        history=history,
        algorithm=run.get("algorithm"),
        settings=run.get("settings", {}),
        changed=run.get("changed", {}),
        about=run.get("about", {}),
        weights=run.get("weights", {}),
        early=early,
        late=late,
        health=read_lines(folder / HEALTH_FILE),
        distributions=read_lines(folder / SAMPLES_FOLDER / DISTRIBUTIONS, grows=True),
        probes=read_lines(folder / SAMPLES_FOLDER / PROBES, grows=True),
        tokens=read_lines(folder / SAMPLES_FOLDER / TOKENS, grows=True),
        folder=folder,
        error=error,
        learns_from=run.get("learns_from", FROM_ROLLOUTS),
    )


def read_settings(folder: str | Path) -> dict[str, Any]:
    """The settings of a run; empty if the folder is not that of a run."""
    path = Path(folder) / RUN_FILE
    return _read_json(path).get("settings", {}) if path.is_file() else {}


def _log_history(path: Path) -> list[dict[str, Any]]:
    grows = path.name == LOG_FILE
    history = read_lines(path, grows=True) if grows else _read_json(path).get("log_history")
    if not isinstance(history, list) or not all(
        isinstance(log, dict) and isinstance(log.get("step"), int | float) for log in history
    ):
        raise ValueError(
            f"{path} contains no valid log_history: it must be a list of logs, each with the number of its step. "
            "Copy it from the run again, or give another output_dir."
        )
    return history


def _newest_log(folder: Path) -> Path:
    """The log of a run that has ended; of one that is running, or was killed, what it has written last."""
    if not folder.is_dir():
        raise ValueError(f"The folder {folder} does not exist. Give the output_dir of a run.")
    found = _logs(folder)
    if not found:
        raise ValueError(
            f"{folder} contains no {STATE_FILE}, neither directly nor in a checkpoint, and no {LOG_FILE}: no run has "
            "logged anything there. Give the output_dir of a run."
        )
    return max(found, key=lambda path: (path.stat().st_mtime, path.name == STATE_FILE, str(path)))


def _logs(folder: Path) -> list[Path]:
    names = (STATE_FILE, f"checkpoint-*/{STATE_FILE}", LOG_FILE)
    return [path for name in names for path in folder.glob(name)]


def has_log(folder: Path) -> bool:
    """Whether a run has logged anything yet; it may not even have made its folder."""
    return bool(_logs(folder))


def last_change(folder: Path) -> float:
    """When a file that the report is made from was last written; 0 if there is none."""
    names = (RUN_FILE, HEALTH_FILE, ERROR_FILE, f"{SAMPLES_FOLDER}/*", f"{COMPLETIONS_FOLDER}/*")
    found = [*_logs(folder), *(path for name in names for path in folder.glob(name))]
    return max((path.stat().st_mtime for path in found), default=0.0)


def _samples(folder: Path) -> tuple[list[dict], list[dict]]:
    """Completions of the first and last rollout: the samples of every run, or else those of the completion log."""
    early, late = (read_lines(folder / SAMPLES_FOLDER / name) for name in (EARLY, LATE))
    logged = sorted((folder / COMPLETIONS_FOLDER).glob("completions_*.jsonl"))
    early = early or (_few(read_lines(logged[0])) if logged else [])
    late = late or (_few(read_lines(logged[-1])) if len(logged) > 1 else [])
    return early, late


def _few(rows: list[dict]) -> list[dict]:
    """Completions to show: the first ones, or episodes as they are chosen for the samples."""
    if not all(map(is_episode, rows)):
        return rows[:NUM_SAMPLES]
    return [rows[place] for place in chosen(rows, NUM_SAMPLES)]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} is not valid JSON ({error}). It may be incomplete: copy it from the run again."
        ) from error
    if not isinstance(content, dict):
        raise ValueError(
            f"{path} contains a JSON {type(content).__name__}, but a run writes an object. Copy it from the run again."
        )
    return content


def read_lines(path: Path, grows: bool = False) -> list[dict[str, Any]]:
    """The JSON objects of a file with one per line; an empty list if there is no file.

    Args:
        path (`Path`): The file.
        grows (`bool`): Whether lines are added to it, so that the last one may not be whole.

    Raises:
        ValueError: If a line is not valid JSON.
    """
    if not path.is_file():
        return []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # splitlines() would also split inside texts, at U+2028
        lines = lines[:-1] if grows else lines
        return [json.loads(line) for line in lines if line.strip()]
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} contains a line that is not valid JSON ({error}). Remove the line, or copy the file again."
        ) from error


def write_json(path: Path, value: Any) -> None:
    with whole_file(path) as unfinished:
        unfinished.write_text(json.dumps(value, ensure_ascii=False, indent=2, default=str) + "\n", encoding="utf-8")


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with whole_file(path) as unfinished, unfinished.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
