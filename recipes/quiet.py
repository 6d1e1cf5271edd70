# SPDX-License-Identifier: Apache-2.0
"""One look for all recipes: their own lines and bars, and not those of the libraries below.

Importing this module quietens loggers of libraries that talk about themselves when they are imported, so it comes
first. Bars of transformers ("Loading weights") and of datasets are off; what takes long shows a line that moves.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

TALKATIVE = ("bitsandbytes",)  # about a kernel that only 4-bit models on a CPU would need
LIBRARIES = ("transformers", "trl", "peft", "accelerate", "datasets", "torch")
for _name in TALKATIVE:
    logging.getLogger(_name).setLevel(logging.ERROR)
for _name in LIBRARIES:  # what they will change in each other
    warnings.filterwarnings("ignore", category=FutureWarning, module=_name)


def switch_bars_off() -> None:
    """No bars of transformers and datasets in this process."""
    from datasets import disable_progress_bars  # not at the top: this module comes before all libraries
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    disable_progress_bars()


@contextmanager
def moving(what: str, is_shown: bool = True) -> Iterator[None]:
    """Shows on a terminal what is being done and for how long, and removes the line at the end.

    Args:
        what (`str`): What is being done.
        is_shown (`bool`): False in all processes but the first.
    """
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console()
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    hidden = not (is_shown and console.is_terminal)
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        progress.add_task(what, total=None)
        yield
