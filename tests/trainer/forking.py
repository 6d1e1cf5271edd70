# SPDX-License-Identifier: Apache-2.0
"""Several processes of one training as forks of this one, which has imported everything: a start costs no import."""

import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from launching import free_port


def fork_processes(work: Callable[[int], None], processes: int, errors: Path | None = None) -> list[int]:
    """Starts `work(rank)` in each process, joined by torch's environment variables.

    Args:
        work (`Callable`): Ends the process with status 1 if it raises.
        processes (`int`): How many.
        errors (`Path`, *optional*): Folder that gets what each writes to stderr, as `RANK.txt`.

    Returns:
        `list[int]`: Their ids.
    """
    port = free_port()
    started = []
    for rank in range(processes):
        child = os.fork()
        if child == 0:
            _run(work, rank, processes, port, errors)
        started.append(child)
    return started


def _run(work: Callable[[int], None], rank: int, processes: int, port: int, errors: Path | None) -> None:
    if errors is not None:
        os.dup2(os.open(errors / f"{rank}.txt", os.O_WRONLY | os.O_CREAT), 2)
    if processes > 1:
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
        os.environ.update(address | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
    status = 1
    try:
        work(rank)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def wait(
    children: list[int], until: Callable[[], bool] = lambda: False, timeout: float = 600
) -> dict[int, int] | None:
    """Waits for all to end.

    Returns:
        Their exit statuses (a signal as a negative number), or `None` as soon as `until()` holds.

    Raises:
        TimeoutError: If some do not end.
    """
    statuses: dict[int, int] = {}
    end = time.monotonic() + timeout
    while len(statuses) < len(children):
        if until():
            return None
        for child in set(children) - set(statuses):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                statuses[child] = os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            kill(set(children) - set(statuses))
            raise TimeoutError(f"{len(children) - len(statuses)} of {len(children)} processes hang after {timeout} s")
        time.sleep(0.0005)
    return statuses


def kill(children) -> None:
    """Kills at once and takes leave of each."""
    for child in children:
        os.kill(child, 9)
    for child in children:
        os.waitpid(child, 0)
