# SPDX-License-Identifier: Apache-2.0
"""The command line of a recipe: every setting is a flag, written out; `--help` has those that people use, in groups.

Which flags those are is in `flag_groups.py`. A flag that does not exist is answered with the one that may have been
meant, and a flag of MiniMind's scripts with its row of docs/migrate-from-minimind.md.
"""

import argparse
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, get_args, get_type_hints

from flag_groups import GROUPS, NEEDED
from flags import CONFIG, check_kinds, split_config
from transformers import TrainingArguments
from trl import TrlParser

from minimind_hf.trainer.settings.minimind_flags import what_minimind_calls
from minimind_hf.trainer.settings.trl_defaults import trl_defaults
from minimind_hf.trainer.settings.trl_fields import fields_without_effect, unsupported_fields

COMMAND = "minimind-hf"  # as the package's command runs a recipe; `python recipes/NAME.py` is the other way
_VALUES = {int: "N", float: "X", bool: "true|false"}  # how the help calls a value of a type
_MANY = 10  # choices that are not listed
_LONG = 120  # characters of a help by transformers or trl above which only its first sentence is shown
_ENVIRONMENT = "env"  # in a yaml file: variables of the environment, by trl


class RecipeParser(TrlParser):
    """Parses flags, and the yaml file of `--config`, into dataclasses.

    Args:
        recipe (`str`): Name of the recipe, for flags of MiniMind that mean something else in another of its scripts.
        classes (`Sequence[type]`): Dataclasses whose fields are the flags, among them the settings of the trainer.
        doc (`str`, *optional*): The docstring of the recipe, with which `--help` begins.
    """

    def __init__(self, recipe: str, classes: Sequence[type], doc: str | None):
        super().__init__(classes, formatter_class=_Formatter, allow_abbrev=False)
        self._recipe = recipe
        self._classes = classes
        self.description = _as_called(doc or "", self.prog)
        self.usage = "%(prog)s [--config FILE.yaml] [--FLAG VALUE ...]"
        self.add_argument("--help-all", action=_HelpAll)
        self._describe()

    def parse(self, arguments: Sequence[str], kept: Collection[str] = ()) -> tuple[Any, ...]:
        """The dataclasses, from flags as `separate_config` returns them.

        Args:
            arguments (`Sequence[str]`): The flags.
            kept (`Collection[str]`): Settings whose defaults stay with `--defaults trl`.

        Raises:
            ValueError: Naming a flag, or a line of the yaml file, that does not exist, or a value of the wrong kind.
        """
        check_kinds(arguments, *self._classes)
        flags, settings = split_config(arguments)
        self.set_defaults_with_config(**settings)  # so that what the file sets is not asked for
        self._refuse_unknown(flags, settings)
        given = self.given_names(arguments)
        self._take_trl_defaults(flags, {*given, *kept})
        made = self.parse_args_and_config(arguments)
        for each in made:
            if hasattr(each, "passed"):
                each.passed = tuple(sorted(given))
        return made

    def _take_trl_defaults(self, flags: Sequence[str], given: Collection[str]) -> None:
        chosen = self.parse_known_args(flags)[0]
        if getattr(chosen, "defaults", None) == "trl":
            config_class = next(kind for kind in self._classes if "defaults" in kind.__dataclass_fields__)
            self.set_defaults_with_config(**trl_defaults(config_class, given, chosen.fp16))

    def given_names(self, arguments: Sequence[str]) -> set[str]:
        """Names of the settings that the flags or the yaml file set."""
        flags, settings = split_config(arguments)
        options = {option for flag in flags for option in [flag.partition("=")[0]] if option.startswith("--")}
        by_flag = {action.dest for action in self._actions if options.intersection(action.option_strings)}
        return by_flag | {name for name in self._by_name() if settings.get(name) not in (None, "", [])}

    def _by_name(self) -> dict[str, argparse.Action]:
        """The flag of each setting; `--no_NAME`, the second for the same setting, is not listed."""
        found: dict[str, argparse.Action] = {}
        for action in self._actions:
            if action.dest is not argparse.SUPPRESS and action.dest != "help":
                found.setdefault(action.dest, action)
        return found

    def _describe(self) -> None:
        """Says of each flag what kind of value it takes, and of those of transformers and trl not too much."""
        hints = {name: hint for kind in self._classes for name, hint in get_type_hints(kind).items()}
        ours = {name for kind in self._classes for each in kind.__mro__ if _is_ours(each) for name in _declared(each)}
        for name, action in self._by_name().items():
            text = " ".join((action.help or "").split())
            action.help = text if name in ours or len(text) <= _LONG else text.partition(". ")[0].rstrip(".") + "."
            if action.metavar is None and not 0 < len(action.choices or ()) <= _MANY:
                action.metavar = _value(hints[name])

    # What does not exist

    def _refuse_unknown(self, flags: Sequence[str], settings: dict[str, Any]) -> None:
        needed = [action for action in self._actions if action.required]
        for action in needed:
            action.required = False  # the first error is the flag that does not exist, not one that is missing
        _, rest = self.parse_known_args(flags)
        for action in needed:
            action.required = True
        names = {*self._by_name(), _ENVIRONMENT}
        wrong = [("flag", each.partition("=")[0]) for each in rest if each.startswith("--")]
        wrong += [("setting", name) for name in settings if name not in names]
        wrong = wrong or [("argument", each) for each in rest]
        if wrong:
            raise ValueError(" ".join(self._answer(*each) for each in wrong))

    def _answer(self, kind: str, written: str) -> str:
        name, known = written.removeprefix("--").replace("-", "_"), self._by_name()
        if (answer := what_minimind_calls(name, self._recipe)) is not None:
            return f"{written} is a flag of MiniMind's scripts. {answer}"
        started = [flag for flag in known if flag.startswith(name)]
        meant = started[:3] or get_close_matches(name, known, n=1)
        advice = f"Did you mean {' or '.join(f'--{each}' for each in meant)}? " if meant else ""
        return f"There is no {kind} {written}. {advice}--help lists the usual flags, --help-all every one."

    # Help

    def format_help(self, everything: bool = False) -> str:
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, [], [])
        formatter.add_text(self.description)
        for title, actions in self._sections(everything):
            formatter.start_section(title)
            formatter.add_arguments(actions)
            formatter.end_section()
        return formatter.format_help()

    def _sections(self, everything: bool) -> Iterator[tuple[str, list[argparse.Action]]]:
        yield (
            "this command",
            [
                _documented("--help-all", None, "show every flag, those of transformers and trl too"),
                _documented(
                    CONFIG, "FILE.yaml", "settings by the names of the flags, one a line; flags win over them"
                ),
                _documented("--debug", None, "show the traceback of an error, not one line"),
            ],
        )
        hidden = {name for kind in self._classes for name in (*unsupported_fields(kind), *fields_without_effect(kind))}
        left = {name: action for name, action in self._by_name().items() if name not in {*hidden, "debug"}}
        for title, names in GROUPS.items():
            needed = NEEDED.get(title)
            actions = [left.pop(name) for name in names.split() if name in left] if needed in (None, *left) else []
            if actions:
                yield title, actions
        inherited = {each.name for each in fields(TrainingArguments)}
        if everything:
            yield "further settings", [action for name, action in left.items() if name not in inherited]
            yield "transformers' TrainingArguments", [action for name, action in left.items() if name in inherited]


def _value(hint: Any) -> str:
    """A value of this type; of a list, one of its items."""
    parts = [part for each in (hint, *get_args(hint)) for part in (each, *get_args(each))]
    return next((name for kind, name in _VALUES.items() if kind in parts), "TEXT")


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] not in ("transformers", "trl")


def _declared(kind: type) -> list[str]:
    return list(vars(kind).get("__annotations__", ()))


def _documented(flag: str, metavar: str | None, help: str) -> argparse.Action:
    """A line of the help for a flag that is taken out before the others are parsed."""
    return argparse.Action([flag], argparse.SUPPRESS, nargs=0 if metavar is None else None, metavar=metavar, help=help)


class _HelpAll(argparse.Action):
    """Prints every flag and ends, as `--help` does with the usual ones."""

    def __init__(self, option_strings: Sequence[str], dest: str):
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS)

    def __call__(self, parser, namespace, values, option_string=None):
        print(parser.format_help(everything=True), end="")
        parser.exit()


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Shows each flag in one spelling, with the kind of its value, and its default if it has one."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=34)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        value = "" if action.nargs == 0 else self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{action.option_strings[0]} {value}".rstrip()

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        shown = action.default not in (None, False, "", argparse.SUPPRESS, [])
        return f"{text} (default: %(default)s)" if shown and "%(default)" not in text else text


def _as_called(doc: str, prog: str) -> str:
    """The examples of a docstring as this command is called."""
    if not prog.startswith(COMMAND):
        return doc
    doc = re.sub(
        r"accelerate launch --config_file accelerate_configs/(\w+)\.yaml recipes/(\w+)\.py",
        rf"{COMMAND} \2 --accelerate_config \1",
        doc,
    )
    return re.sub(r"python recipes/(\w+)\.py", rf"{COMMAND} \1", doc).replace("--config recipes/", "--config ")
