# SPDX-License-Identifier: Apache-2.0
"""Writes docs/benchmarks-gpu.md from the lines of `gpu.py`: nothing on the page is written by hand."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Line = dict[str, Any]
_PROOFS = ("attention", "proof")


def write_page(path: Path, lines: Sequence[Line]) -> None:
    """Writes the page.

    Args:
        path (`Path`): Where.
        lines (`Sequence[dict]`): The machine first, then a line for each case.
    """
    machine, *found = lines
    parts = [
        "# Benchmarks on a GPU",
        "`python benchmarks/gpu.py` wrote this page from what it measured, and it is not edited by hand. Models have "
        "random weights. Rollouts are 2 prompts x 6 completions of full length; a step is rollout, scoring, reference "
        "and update.",
        _machine(machine),
        "## Proofs",
        _table(("case", "holds", "figures"), [_proof(line) for line in _of(found, _PROOFS)]),
        "## Rollouts",
        _table(
            ("case", "tokens/s", "seconds", "warm-up, s", "peak, GiB"), [_rollout(x) for x in _of(found, ["rollout"])]
        ),
        "## Steps",
        _table(
            ("case", "seconds", "warm-up, s", "peak, GiB", "mean tokens"), [_step(x) for x in _of(found, ["step"])]
        ),
    ]
    path.write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")


def _of(lines: Iterable[Line], kinds: Sequence[str]) -> list[Line]:
    return [line for line in lines if line["case"].split("/")[0] in kinds]


def _machine(line: Line) -> str:
    device = f"{line['name']} ({line['gib']} GiB, CUDA {line['cuda']})" if "name" in line else line["cpu"]
    return f"Machine: {device}, torch {line['torch']}, transformers {line['transformers']}, {line['date']}."


def _proof(line: Line) -> tuple[str, ...]:
    figures = {name: value for name, value in line.items() if name not in ("case", "holds", "took_s", "said")}
    said = [f'"{text}"' for text in line.get("said", ())]
    return (
        line["case"],
        str(line.get("holds", "no")),
        "; ".join([f"{n} {_number(v)}" for n, v in figures.items()] + said),
    )


def _rollout(line: Line) -> tuple[str, ...]:
    return _row(line, ("tokens_per_s", "seconds", "warm_up_s", "peak_gib"))


def _step(line: Line) -> tuple[str, ...]:
    return _row(line, ("step_s", "warm_up_s", "peak_gib", "mean_completion"))


def _row(line: Line, names: Sequence[str]) -> tuple[str, ...]:
    why_not = line.get("error") or line.get("skipped")
    if why_not:
        return line["case"], f"not measured: {why_not}", *[""] * (len(names) - 1)
    return line["case"], *(_number(line.get(name, "")) for name in names)


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) and abs(value) < 100 else str(value)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *[[cell.replace("|", "\\|") for cell in row] for row in rows]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
