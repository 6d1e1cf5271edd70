# SPDX-License-Identifier: Apache-2.0
"""Which settings the user gave, as against what transformers or this package made of them."""

import functools
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Any

from .secrets import without_secrets

_GIVEN, _MADE = "_given_by_user", "_made_of_them"


def noting_passed(config_class: type) -> type:
    """A decorator: instances know by `passed` which settings they were made with, whatever their values.

    A command line passes all of them; it sets `passed` itself.
    """

    def made(cls: type, *args: Any, **kwargs: Any) -> Any:
        config = super(config_class, cls).__new__(cls)
        names = (each.name for each in fields(cls) if each.init)
        config.passed = (*(name for name, _ in zip(names, args, strict=False)), *kwargs)
        return config

    config_class.__new__ = staticmethod(made)
    return config_class


def noting_given(post_init: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wraps the `__post_init__` of settings: what was given is noted before it, what was made of it after."""

    @functools.wraps(post_init)
    def noting(args: Any) -> None:
        if not hasattr(args, _GIVEN):
            names = [each.name for each in fields(args) if each.init and differs(getattr(args, each.name), each)]
            setattr(args, _GIVEN, tuple(names))
        post_init(args)
        args.note_settled()
        setattr(args, _MADE, _values(args))

    return noting


def given_settings(args: Any) -> list[str]:
    """Names of the settings that were given when they were made, or changed by name since, in order.

    What follows from others is not among them: the sizes of a rollout, the schedule's arguments. Nor is what a command
    line made of a flag that was not given.
    """
    given, now = set(getattr(args, _GIVEN, ())) & set(args.passed), _values(args)
    made = getattr(args, _MADE, now)
    return [name for name in now if name in given or (now[name] != made[name] and name not in args._SETTLED)]


def note_made(args: Any, name: str) -> None:
    """Notes that the value of a setting was made of others, and not given."""
    getattr(args, _MADE)[name] = _values(args)[name]


def _values(args: Any) -> dict[str, Any]:
    return without_secrets({each.name: getattr(args, each.name, None) for each in fields(args)})


def differs(value: Any, field: Field) -> bool:
    """Whether a value is not the default of its field."""
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return value is not MISSING and value != default
