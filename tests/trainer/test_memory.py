# SPDX-License-Identifier: Apache-2.0
"""A run holds no more memory after 260 steps than after 60; before, caches of shapes still fill."""

import json

import pytest
from launching import launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SLACK = 1.02


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_memory_stays_flat(algorithm, tmp_path):
    done = launch("memory_worker.py", algorithm, tmp_path, timeout=580)
    held = json.loads(done.stdout.splitlines()[-1])
    assert held["260"] <= SLACK * held["60"], held
