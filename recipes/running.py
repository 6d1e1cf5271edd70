# SPDX-License-Identifier: Apache-2.0
"""Runs a recipe as a command: what the user can correct ends in one line on stderr and exit status 1, Ctrl-C in one of
its own and 130.

`--debug` without a value shows the traceback of such an end, too. (With a value it is transformers' own setting.)
"""

import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import minimind_hf

DEBUG = "--debug"
_OURS = (Path(minimind_hf.__file__).resolve().parent, Path(__file__).resolve().parent)


def run(main: Callable[[Sequence[str] | None], None]) -> None:
    """Runs a recipe with the arguments of the process, and ends the process if it fails.

    Args:
        main (`Callable`): The recipe.
    """
    arguments, shows_all = without_debug(sys.argv[1:])
    try:
        main(arguments)
    except KeyboardInterrupt:
        if shows_all:
            raise
        print(f"{Path(sys.argv[0]).name}: interrupted", file=sys.stderr, flush=True)
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        if shows_all or not _is_told(error):
            raise
        print(f"{Path(sys.argv[0]).name}: error: {_one_line(error)}", file=sys.stderr, flush=True)
        sys.exit(1)


def without_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """The arguments without a `--debug` that no value follows, and whether there was one."""
    followers = [*arguments, "--"][1:]
    is_ours = [each == DEBUG and after.startswith("--") for each, after in zip(arguments, followers, strict=True)]
    return [each for each, ours in zip(arguments, is_ours, strict=True) if not ours], any(is_ours)


def _is_told(error: Exception) -> bool:
    """Whether the message says what to do: errors of this package do, and those of files and values mostly."""
    return isinstance(error, OSError | ValueError) or type(error).__module__.split(".")[0] == "minimind_hf"


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    raised_in = Path(traceback.extract_tb(error.__traceback__)[-1].filename).resolve()
    if any(folder in raised_in.parents for folder in _OURS):
        return text
    return f"{text} ({type(error).__name__}; {DEBUG} shows where)"
