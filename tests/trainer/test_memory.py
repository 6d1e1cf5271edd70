# SPDX-License-Identifier: Apache-2.0
"""A run holds no more memory after 200 steps than after 20."""

import json
import os
import subprocess
import sys

import pytest
from launching import HERE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SLACK = 1.02


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_memory_stays_flat(algorithm, tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parent), str(HERE.parents[1])])
    command = [sys.executable, str(HERE / "memory_worker.py"), algorithm, str(tmp_path)]
    done = subprocess.run(command, env=environment, timeout=580, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    held = json.loads(done.stdout.splitlines()[-1])
    assert held["200"] <= SLACK * held["20"], held
