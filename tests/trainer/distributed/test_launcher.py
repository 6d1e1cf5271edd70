# SPDX-License-Identifier: Apache-2.0
"""Processes do not outlive a launcher that was killed."""

import os
import signal
import sys
import time

import pytest
from launching import Running, environment

CHILD = """
import os, signal, sys, time
from minimind_hf.trainer.distributed.launcher import ending_with_launcher
stubborn = sys.argv[1] == "stubborn"
if stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with ending_with_launcher(every=0.1, grace=0.5):
    print(os.getpid(), flush=True)
    time.sleep(60)
"""
LAUNCHER = """
import subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[1], sys.argv[2]])
"""


def lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{process}/stat") as file:
        return file.read().split()[2] != "Z"  # nobody may have asked for its end yet


@pytest.mark.timeout(120)
@pytest.mark.skipif(not os.path.isdir("/proc"), reason="reads /proc")
@pytest.mark.parametrize("how", ["plain", "stubborn"])
def test_a_process_ends_when_its_launcher_is_killed(how):
    command = [sys.executable, "-c", LAUNCHER, CHILD, how]
    with Running(command, environment(TORCHELASTIC_RUN_ID="none")) as launcher:
        process = int(launcher.wait_for("\n"))
        assert lives(process)
        launcher.process.send_signal(signal.SIGKILL)
        ends = time.monotonic() + 30
        while lives(process) and time.monotonic() < ends:
            time.sleep(0.1)
        assert not lives(process)
