# SPDX-License-Identifier: Apache-2.0
"""Flags of the command line from dataclasses, by HfArgumentParser: a default, a help and a type stand once."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from transformers import HfArgumentParser

T = TypeVar("T")


class _Switch(argparse.Action):
    """Turns a setting on and takes no value: HfArgumentParser's would take a word that follows for its value."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str, **_: Any):
        super().__init__(option_strings, dest, nargs=0, default=False, help=help)

    def __call__(self, parser, namespace, values, option_string=None):
        setattr(namespace, self.dest, True)


class Repeated(argparse.Action):
    """Takes one value and may be repeated: HfArgumentParser's would take all words that follow."""

    def __init__(self, option_strings: Sequence[str], dest: str, nargs: str, **of_argparse: Any):
        super().__init__(option_strings, dest, **of_argparse)

    def __call__(self, parser, namespace, values, option_string=None):
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or []), values])


def flag(default: Any, help: str, **of_argparse: Any) -> Any:
    """A field for a flag.

    Args:
        default (`Any`): Its default; `list` for an empty one. `MISSING` requires the flag.
        help (`str`): With `%(default)s` where the default belongs.
        of_argparse: Further arguments of `add_argument`.
    """
    kind = "default_factory" if default is list else "default"
    return field(**{kind: default}, metadata={"help": help, **of_argparse})


def switch(help: str) -> Any:
    """A field for a flag without a value, which is off unless it is given."""
    return flag(False, help, action=_Switch)


@dataclass
class ModelFlags:
    """Flags of every command that loads a model, by the names of [`load_for_inference`]."""

    device: str | None = flag(None, "cpu, cuda, ... (default: a GPU if there is one)", metavar="DEVICE")
    dtype: str = flag("auto", "float32, bfloat16, float16 (default: as saved)")
    trust_remote_code: bool = switch("run code that comes with the model")


def make_parser(command: str, description: str, *dataclasses: type) -> HfArgumentParser:
    """A parser whose flags are the fields of dataclasses."""
    return HfArgumentParser(
        dataclasses,
        prog=f"minimind-hf {command}",
        description=description,
        formatter_class=argparse.HelpFormatter,
        allow_abbrev=False,
    )


def taken(settings_class: type[T], options: argparse.Namespace) -> T:
    """The dataclass with the values of its flags.

    Raises:
        ValueError: If it refuses a value.
    """
    return settings_class(**{each.name: getattr(options, each.name) for each in fields(settings_class)})


def refuse_unused(settings: Any, needs: str) -> None:
    """Refuses settings that would change nothing.

    Args:
        settings (`Any`): A dataclass with defaults.
        needs (`str`): The flags without which it has no effect.

    Raises:
        ValueError: Naming the first that is not at its default.
    """
    for each in fields(settings):
        value = getattr(settings, each.name)
        if value != each.default:
            raise ValueError(f"{each.name} is {value}, but has no effect without {needs}. Add that, or leave it out.")
