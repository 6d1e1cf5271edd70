# SPDX-License-Identifier: Apache-2.0
"""Flags of the command line from dataclasses: a default, a help and a type stand once.

As HfArgumentParser makes them, which the recipes use: it takes a second to import, of which `--help` and a mistyped
flag would be made to wait for nothing.
"""

import argparse
from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


class _Switch(argparse.Action):
    """Turns a setting on and takes no value."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str, **_: Any):
        super().__init__(option_strings, dest, nargs=0, default=False, help=help)

    def __call__(self, parser, namespace, values, option_string=None):
        setattr(namespace, self.dest, True)


class Repeated(argparse.Action):
    """Takes one value and may be repeated, where a list takes all words that follow."""

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


def make_parser(command: str, description: str, *dataclasses: type) -> argparse.ArgumentParser:
    """A parser whose flags are the fields of dataclasses; `--like_this` may be written `--like-this`."""
    parser = argparse.ArgumentParser(prog=f"minimind-hf {command}", description=description, allow_abbrev=False)
    for settings_class in dataclasses:
        types = get_type_hints(settings_class)
        for each in fields(settings_class):
            spellings = dict.fromkeys((f"--{each.name}", f"--{each.name.replace('_', '-')}"))
            parser.add_argument(*spellings, **_of_argparse(each, types[each.name]))
    return parser


def _of_argparse(field: Field, declared: Any) -> dict[str, Any]:
    """The arguments of `add_argument` for a field."""
    kind = next((each for each in get_args(declared) if each is not type(None)), declared)  # of `int | None`, int
    is_list = get_origin(declared) is list or get_origin(kind) is list
    if is_list:
        kind = get_args(declared if get_origin(declared) is list else kind)[0]
    default = field.default if field.default_factory is MISSING else field.default_factory()
    given = {"required": True} if default is MISSING else {"default": default}
    return {"type": kind, **given, **({"nargs": "+"} if is_list else {}), **field.metadata}


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
