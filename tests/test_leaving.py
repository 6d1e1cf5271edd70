# SPDX-License-Identifier: Apache-2.0
"""A process that has exchanged tensors with others ends in order."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("leaving_worker.py")


@pytest.mark.timeout(120)
def test_processes_end_with_code_zero():
    """Left to themselves about half of these pairs abort."""
    environment = {**os.environ, "WORLD_SIZE": "2", "PYTHONPATH": str(WORKER.parents[1])}
    command = [sys.executable, str(WORKER), "12"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110)
    assert json.loads(done.stdout) == [[0, 0]] * 12, done.stderr[-2000:]
