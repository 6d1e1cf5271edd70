# SPDX-License-Identifier: Apache-2.0
"""The results of runs: what each came to, with intervals, and in what runs differ."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import Any

from ..language import said
from .curves import axes_of, group_label
from .people import duration, number, percent
from .record import FROM_DATA, RunRecord
from .seeds import CONFIDENCE, Mean, by_settings, compared_settings, differing, mean_over_runs

_SHARE = re.compile(r"eval_accuracy_(before|after)")
_HELD_OUT = re.compile(r"eval_(.+_)?(rewards/[^/]+/mean|reward)|eval_accuracy_(before|after)")
CARDS = {
    "reward": "reward",
    "eval_reward": "held-out reward",
    "divergence": "divergence from the teacher",
    "kl_ref": "KL to the reference",
    "completions/mean_length": "tokens per completion",
    "explained_variance": "explained variance",
    "tokens_per_second": "tokens per second",
}
CARDS_OF_DATA = {  # of runs that learn from given texts
    "loss": "loss",
    "eval_loss": "held-out loss",
    "mean_token_accuracy": "token accuracy",
    "eval_mean_token_accuracy": "held-out token accuracy",
    "rewards/accuracies": "pairs in the right order",
    "accuracy": "pairs in the right order",
    "eval_rewards/accuracies": "held-out pairs in the right order",
    "eval_accuracy": "held-out pairs in the right order",
    "rewards/margins": "margin",
    "margin": "margin",
}
AT_THE_END = {"reward": "reward at the end", "loss": "loss at the end"}
_OF_DATA = re.compile(r"(eval_)?(mean_token_accuracy|rewards/accuracies|accuracy)")  # shares of runs on given texts
_END = 10  # the end of a run is its last tenth


@dataclass(frozen=True)
class Result:
    """One number of a run or of several.

    Args:
        label (`str`): What it is.
        text (`str`): The number as people write it, with its interval.
        note (`str`): Of what the interval is.
    """

    label: str
    text: str
    note: str = ""


def ends(run: RunRecord, name: str) -> tuple[float, float] | None:
    """Mean of the first and of the last tenth of a logged number; `None` if there is none."""
    values = list(run.series(name).values())
    if not values:
        return None
    tenth = max(1, len(values) // _END)
    return fmean(values[:tenth]), fmean(values[-tenth:])


def held_out_names(run: RunRecord) -> list[str]:
    """Logged numbers of evaluations on what is not trained on."""
    if run.learns_from == FROM_DATA:
        return [name for name in CARDS_OF_DATA if name.startswith("eval_") and name in run.logged_names]
    names = [name for name in run.logged_names if _HELD_OUT.fullmatch(name)]
    return sorted(names, key=lambda name: (not _SHARE.fullmatch(name), name.endswith("after")))


def half_width(run: RunRecord, name: str) -> float | None:
    """Half of the 95 % interval of an evaluation's mean, over prompts; `None` if their number is unknown.

    Every prompt counts once, with the standard deviation of completions, which is at least that of prompts.
    """
    values, prompts = list(run.series(name).values()), run.about.get("held_out_prompts")
    if not values or not isinstance(prompts, int) or prompts < 2:
        return None
    std_name = f"{name}_std" if name.endswith("reward") else f"{name.removesuffix('/mean')}/std"
    spread = list(run.series(std_name).values())
    if _SHARE.fullmatch(name):
        spread = [math.sqrt(values[-1] * (1 - values[-1]))]
    return NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) * spread[-1] / math.sqrt(prompts) if spread else None


def label_of(name: str) -> str:
    """What a held-out number is called on the page."""
    if share := _SHARE.fullmatch(name):
        text = "held-out accuracy before" if share.group(1) == "before" else "held-out accuracy after"
        return said(text)
    if name in CARDS_OF_DATA:
        return said(CARDS_OF_DATA[name])
    name = name.removeprefix("eval_").removeprefix("rewards/").removesuffix("/mean").replace("rewards/", "")
    return said("held-out {name}", name=name)


def _written(name: str, value: float, half: float | None) -> str:
    is_share, is_known = _is_share(name), half is not None and math.isfinite(half)
    if is_share:
        return f"{100 * value:.1f} ± {100 * half:.1f} %" if is_known else percent(value)
    return f"{number(value)} ± {number(half)}" if is_known else number(value)


def _is_share(name: str) -> bool:
    return bool(_SHARE.fullmatch(name) or _OF_DATA.fullmatch(name))


def table(runs: Sequence[RunRecord], labels: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """The results of runs that are compared: a row for each, or for those that differ only in their seeds.

    Returns:
        `tuple[list[str], list[list[str]]]`: The head and the rows, without columns in which no run has a value.
    """
    held_out = list(dict.fromkeys(label_of(name) for run in runs for name in held_out_names(run)))
    head = [
        *map(said, ("run", "runs", *AT_THE_END.values())),
        *held_out,
        *map(said, ("time", "per step", "steps", "completions", "tokens")),
    ]
    rows = [
        [*_row([runs[place] for place in members], group_label(members, labels), held_out)]
        for members in by_settings(runs)
    ]
    kept = [place for place, column in enumerate(zip(*rows, strict=True)) if set(column) != {"-"}]
    return [head[place] for place in kept], [[row[place] for place in kept] for row in rows]


def _row(members: Sequence[RunRecord], label: str, held_out: Sequence[str]) -> Iterator[str]:
    yield label
    yield str(len(members))
    from_data = members[0].learns_from == FROM_DATA
    for name in AT_THE_END:  # the loss of a run on rollouts says little: its data change with the policy
        has_it = from_data == (name == "loss")
        yield _over(members, name, [each[1] for run in members if has_it and (each := ends(run, name))])
    names = {label_of(name): name for name in held_out_names(members[0])}
    for name in (names.get(label, "") for label in held_out):
        yield _over(members, name, [list(run.series(name).values())[-1] for run in members if run.series(name)])
    seconds = [run.seconds for run in members if run.seconds]
    yield duration(fmean(seconds)) if seconds else "-"
    per_step = [each for run in members if (each := seconds_per_step(run)) is not None]
    yield duration(fmean(per_step)) if per_step else "-"
    yield number(max(run.steps for run in members))
    for counted in (("completions",), ("tokens", "tokens_of_data")):
        axes = [points for run in members for axis in counted if (points := axes_of(run).get(axis))]
        last = [max(points.values()) for points in axes]
        yield number(round(fmean(last))) if last else "-"


def _over(members: Sequence[RunRecord], name: str, values: Sequence[float]) -> str:
    """A number of runs with equal settings: over their seeds, or of one run over its prompts."""
    if not values:
        return "-"
    mean: Mean = mean_over_runs(values)
    return _written(name, mean.value, half_width(members[0], name) if len(values) == 1 else mean.half)


def seconds_per_step(run: RunRecord) -> float | None:
    """Mean over the logged steps, without evaluations."""
    seconds = run.seconds_by_step
    return max(seconds.values()) / max(seconds) if seconds else None


def settings_that_differ(runs: Sequence[RunRecord], labels: Sequence[str]) -> tuple[list[str], list[list[Any]]]:
    """A row for each setting that is not the same everywhere, a column for each group of equal settings.

    Settings that all runs have come first: the others are those of single algorithms.
    """
    groups = by_settings(runs)
    first = [{"algorithm": runs[members[0]].algorithm, **compared_settings(runs[members[0]])} for members in groups]
    names = [name for name in differing(first) if name not in ("seed", "data_seed")]
    names.sort(key=lambda name: not all(name in each for each in first))
    head = [said("setting"), *(group_label(members, labels) for members in groups)]
    return head, [[name, *(each.get(name, "-") for each in first)] for name in names]


def cards(run: RunRecord) -> Iterator[Result]:
    """The most important numbers of one run: what they are at the end, and what they were at the start."""
    before, after = (list(run.series(f"eval_accuracy_{when}").values()) for when in ("before", "after"))
    if before and after:
        half = half_width(run, "eval_accuracy_after")
        text = _written("eval_accuracy_after", after[-1], half)
        yield Result(said("held-out accuracy"), text, said("before {value}", value=percent(before[-1])))
    for name, label in (CARDS_OF_DATA if run.learns_from == FROM_DATA else CARDS).items():
        if (values := ends(run, name)) is not None:
            half = half_width(run, name) if name.startswith("eval_") else None
            first = percent(values[0]) if _is_share(name) else number(values[0])
            note = said("at the start {value}", value=first) if len(run.series(name)) > 1 else ""
            yield Result(said(label), _written(name, values[1], half), note)
    if (per_step := seconds_per_step(run)) is not None:
        yield Result(said("per step"), duration(per_step), said("{time} in all", time=duration(run.seconds)))
