# SPDX-License-Identifier: Apache-2.0
"""Runs that are killed by SIGKILL at 20 random moments, the save included, end as the run that never was."""

import json
from pathlib import Path

import pytest
from launching import launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

KILLS = 20


@pytest.mark.parametrize(
    ("processes", "algorithm"),
    [(1, "grpo"), (1, "ppo"), (2, "grpo"), (1, "grpo_agent"), (1, "ppo_agent"), (2, "grpo_agent")],
)
def test_killed_and_resumed_equals_straight(processes, algorithm, tmp_path):
    done = launch("kill_worker.py", tmp_path, processes, algorithm, KILLS, 0, timeout=1100)
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["kills"] == {"rollout": 5, "scoring": 5, "update": 5, "save": 5}
    assert report["finished"] == report["equal"] >= 1
    assert report["checkpoints_read"] > KILLS  # none of them unreadable
    assert not list(Path(tmp_path).rglob("_saving"))
