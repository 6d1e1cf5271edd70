# SPDX-License-Identifier: Apache-2.0
"""A process that holds an output folder, and may fork a child meanwhile."""

import os
import sys
import time
from multiprocessing.synchronize import Event
from pathlib import Path

from minimind_hf.trainer.checkpoints.run_folder import only_run_in


def hold(folder: Path, forks: str | None, held: Event) -> None:
    with only_run_in(folder):
        if forks is not None:
            globals()[forks]()
        held.set()
        time.sleep(60)


def let_child_leave() -> None:
    child = os.fork()
    if child == 0:
        sys.exit()  # through the context
    os.waitpid(child, 0)


def die_before_child() -> None:
    if os.fork() == 0:
        time.sleep(20)
        os._exit(0)
    os.kill(os.getpid(), 9)
