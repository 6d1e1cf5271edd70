# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/settings.md: every field of every class of settings, in the groups of `--help`.

A field has one row for each meaning that it has: `beta` is one thing for GRPO and another for distillation. A page in
another language is a row of `WORDS` and, where `help_in` knows any, translated helps.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, fields

import flag_groups
import trl
from chinese_settings import HEADINGS, help_in_chinese
from transformers import TrainingArguments

import minimind_hf
from minimind_hf import GRPOConfig, RLConfig
from minimind_hf.trainer.settings import minimind_flags
from minimind_hf.trainer.settings.trl_fields import fields_without_effect, unsupported_fields


@dataclass(frozen=True)
class Words:
    """What the tables say besides the helps, in one language.

    Args:
        head (`tuple`): Names of the five columns.
        same (`str`): In the column of trl, for a field of the same name.
        default (`str`): The same, where its default is another; `{}` is that.
        headings (`dict[str, str]`): By the English heading of a group.
        other (`str`): Heading of the fields that `--help` does not show.
        help_in (`Callable[[str, str], str]`): From a field's name and English help to the help of this language.
    """

    head: tuple[str, str, str, str, str]
    same: str
    default: str
    headings: dict[str, str]
    other: str
    help_in: Callable[[str, str], str] = lambda name, text: text


WORDS = {
    "en": Words(
        head=("setting", "default", "meaning", "trl", "MiniMind"),
        same="same",
        default="same, `{}`",
        headings={name: name[0].upper() + name[1:] for name in flag_groups.GROUPS},
        other="Other settings of transformers",
    ),
    "zh": Words(
        head=("设置", "默认值", "含义", "trl", "MiniMind"),
        same="相同",
        default="相同，`{}`",
        headings=HEADINGS,
        other="transformers 的其他设置",
        help_in=help_in_chinese,
    ),
}

_RL = ("GRPO", "PPO")  # the columns' order; all other algorithms after them
# Names of trl's PPOConfig, which trl had until 1.12
_TRL_PPO = {
    "max_completion_length": "response_length",
    "ppo_update_iters": "num_ppo_epochs",
    "clip_epsilon": "cliprange",
    **{name: name for name in ("kl_coef", "gamma", "lam", "vf_coef", "cliprange_value")},
}
_MINIMIND_GRPO = ("num_generations", "beta", "loss_type", "epsilon", "epsilon_high")  # flags of train_grpo.py alone


def configs() -> dict[str, type]:
    """The public classes of settings, by the name of their algorithm."""
    public = [getattr(minimind_hf, name) for name in minimind_hf.__all__ if name.endswith("Config")]
    found = [each for each in public if issubclass(each, RLConfig) and each is not RLConfig]
    labels = {each.__name__.removesuffix("Config"): each for each in found}
    return {label: labels[label] for label in (*_RL, *sorted(labels.keys() - {*_RL}))}


def settings_tables(language: str = "en") -> str:
    """All tables, each under its heading."""
    words = WORDS[language]
    parts = []
    for group, names in _groups().items():
        rows = [row for name in names for row in _rows(name, words)]
        parts += [f"## {words.headings.get(group, words.other)}", _table(words.head, rows)]
    return "\n\n".join(parts)


def fields_of_trl() -> str:
    """The fields that are there for trl's scripts alone."""
    return ", ".join(f"`{name}`" for name in sorted({*_of_trl_alone()})) + "."


def _of_trl_alone() -> Iterator[str]:
    yield from unsupported_fields(GRPOConfig)
    yield from fields_without_effect(GRPOConfig)


def _groups() -> dict[str, list[str]]:
    known = {name: None for config in configs().values() for name in _by_name(config)}
    left = [name for name in known if name not in {*_of_trl_alone()}]
    groups = {}
    for heading, names in flag_groups.GROUPS.items():
        groups[heading] = [name for name in names.split() if name in left]
        left = [name for name in left if name not in groups[heading]]
    groups["other"] = left
    return {heading: names for heading, names in groups.items() if names}


def _rows(name: str, words: Words) -> Iterator[tuple[str, ...]]:
    """One row for each meaning of a field."""
    by_help: dict[str, dict[str, Field]] = {}
    for label, config in configs().items():
        if declared := _by_name(config).get(name):
            by_help.setdefault(declared.metadata["help"], {})[label] = declared
    for text, meant in by_help.items():
        meaning = in_markdown(words.help_in(name, text))
        yield f"`{name}`", _defaults(meant), meaning, _in_trl(name, meant, words), _in_minimind(name, meant)


def _defaults(meant: dict[str, Field]) -> str:
    """`12` if it is that for all, `GRPO: 12` if not."""
    by_value: dict[str, list[str]] = {}
    for label, declared in meant.items():
        by_value.setdefault(_value(declared), []).append(label)
    if len(by_value) == 1 and len(meant) == len(configs()):
        return next(iter(by_value))
    return "<br>".join(f"{', '.join(labels)}: {value}" for value, labels in by_value.items())


def _value(declared: Field) -> str:
    default = declared.default_factory() if declared.default is MISSING else declared.default
    return f"`{getattr(default, 'value', default)!r}`"


def _in_trl(name: str, meant: dict[str, Field], words: Words) -> str:
    """What trl calls it. Where one of trl's classes knows the name, PPO, which trl has no more, adds only another."""
    by_answer: dict[str, list[str]] = {}
    for label, declared in meant.items():
        if answer := _name_in_trl(name, label, declared, words):
            by_answer.setdefault(answer, []).append(label)
    if len(by_answer) > 1 and words.same in by_answer:
        by_answer[words.same] = [label for label in by_answer[words.same] if label != "PPO"]
    found = {answer: labels for answer, labels in by_answer.items() if labels}
    if len(found) == 1:
        return next(iter(found))
    return "<br>".join(f"{', '.join(labels)}: {answer}" for answer, labels in found.items())


def _name_in_trl(name: str, label: str, declared: Field, words: Words) -> str:
    if label == "PPO":
        theirs = name if name in _by_name(TrainingArguments) else _TRL_PPO.get(name, "")
        return words.same if theirs == name else theirs and f"`{theirs}`"
    theirs = _by_name(_trl_config(label)).get(name)
    if theirs is None:
        return ""
    return words.same if _value(theirs) == _value(declared) else words.default.format(_value(theirs).strip("`"))


def _trl_config(label: str) -> type:
    if label == "Distill":
        from trl.experimental.gkd import GKDConfig

        return GKDConfig
    return trl.GRPOConfig


def _in_minimind(name: str, meant: dict[str, Field]) -> str:
    """The flags of MiniMind's RL scripts that are this setting."""
    if name in _MINIMIND_GRPO and "GRPO" not in meant:
        return ""
    for row in minimind_flags.RL:
        ours, theirs = (re.findall(r"--(\w+)", cell) for cell in (row.ours, row.theirs))
        if name in ours:
            paired = [theirs[ours.index(name)]] if len(ours) == len(theirs) else theirs
            return ", ".join(f"`{each}`" for each in paired)
    return ""


def in_markdown(text: str) -> str:
    """A help, which is written for a terminal, as a cell of a table: values and names of settings as code."""
    names = {name for config in configs().values() for name in _by_name(config)}
    text = text.replace("%%", "%").replace("|", "\\|")
    parts = re.split(r"(`[^`]*`)", text)  # what is code already stays
    return "".join(part if part.startswith("`") else _marked(part, names) for part in parts)


def _marked(text: str, names: set[str]) -> str:
    text = re.sub(r"(?<!\w)'([\w.:=]+)'(?!\w)", r"`\1`", text)
    text = re.sub(r"https?://[\w.:/]+\w", r"`\g<0>`", text)
    parts = re.split(r"(`[^`]*`)", text)
    for index in range(0, len(parts), 2):
        parts[index] = re.sub(
            r"(?<![\w./])([a-zA-Z]+(?:_[a-zA-Z0-9]+)+)((?:=[\w.]+|/\w+)?)",
            lambda found: f"`{found[0]}`" if found[1] in names or found[1].isupper() else found[0],
            parts[index],
        ).replace("<", "&lt;")
    return "".join(parts)


def _by_name(config: type) -> dict[str, Field]:
    return {each.name: each for each in fields(config)}


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])
