# SPDX-License-Identifier: Apache-2.0
"""Processes of which some fail; writes to a file, for each case, how each ended. Started by test_agreement.py.

Each case has its own two or three processes, since one of the cases loses one.
"""

import json
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch.distributed as dist
from launching import fork, wait

from minimind_hf.rollout import ServerGoneError
from minimind_hf.rollout.agreement import failing_together, gather, on_main, rank


def values() -> list:
    return [rank(), gather("ab"[rank()]), on_main("counting", lambda: rank() + 7)]


def with_results() -> int:
    with failing_together("working"):
        return 10 + rank()


def raising(*errors: Exception | None) -> Callable[[], None]:
    def work() -> None:
        with failing_together("working"):
            if errors[rank()] is not None:
                raise errors[rank()]

    return work


def failing_on_main() -> int:
    return on_main("pushing", lambda: {}["weights"])


def nested() -> None:
    with failing_together("the whole"), failing_together("a part"):
        if rank() == 1:
            raise KeyError("key")


def dying() -> None:
    with failing_together("working"):
        if rank() == 1:
            os._exit(9)


CASES = {
    "values": values,
    "with_results": with_results,
    "one": raising(None, ValueError("bad 3")),
    "both": raising(ValueError("bad 3"), TypeError("bad 4")),
    "gone": raising(ServerGoneError("away"), None),
    "gone_and_more": raising(ServerGoneError("away"), ValueError("bad 3"), None),
    "all_gone": raising(ServerGoneError("away"), ServerGoneError("too"), None),
    "on_main": failing_on_main,
    "nested": nested,
    "dying": dying,
}
THREE = ("gone_and_more", "all_gone")


def run(work: Callable, files: list[Path], number: int) -> None:
    dist.init_process_group("gloo")
    try:
        outcome = ["returned", work()]
    except Exception as error:
        outcome = [type(error).__name__, str(error)]
    files[number].write_text(json.dumps(outcome))


def outcomes(work: Callable, count: int) -> list:
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, str(number)) for number in range(count)]
        wait(fork(partial(run, work, files), count), timeout=60)
        return [json.loads(file.read_text()) if file.exists() else None for file in files]


def main(path: Path) -> None:
    path.write_text(json.dumps({name: outcomes(work, 3 if name in THREE else 2) for name, work in CASES.items()}))
