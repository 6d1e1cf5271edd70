# SPDX-License-Identifier: Apache-2.0
"""One of two processes fails: all end soon, saying why. One has nothing to learn from: both go on."""

import json
import re

import pytest
import torch
from launching import run_worker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    done = run_worker("fault_worker.py", str(folder))
    return json.loads(done.stdout.splitlines()[-1]) | {"folder": folder}


@pytest.mark.parametrize(
    ("fault", "own", "others"),
    [
        (
            "reward",
            "KeyError.*no answer for this prompt",
            "scoring failed in 1 of 2 processes. process 1: RewardError",
        ),
        ("engine", "ConnectionError: the server went away", "the rollout failed in 1 of 2.*1: ConnectionError"),
        ("empty", "EmptyEngine.*index 0: it has no tokens", "the rollout failed in 1 of 2.*it has no tokens"),
    ],
)
def test_an_error_in_one_process_ends_both_with_its_message(report, fault, own, others):
    found = report[fault]
    assert found["seconds"] < 60
    assert found["statuses"] == [1, 1]
    assert re.search(others, found["errors"][0], re.DOTALL)
    assert re.search(own, found["errors"][1], re.DOTALL)


def test_a_killed_process_ends_the_other(report):
    found = report["killed"]
    assert found["seconds"] < 60
    assert found["statuses"] == [1, -9]
    assert "Another process is gone" in found["errors"][0]


def test_a_process_with_nothing_to_learn_from_does_not_hold_up_the_other(report):
    assert report["masked"]["statuses"] == [0, 0]
    weights = torch.load(report["folder"] / "masked" / "finished.pt")
    assert all(tensor.isfinite().all() for tensor in weights.values())


def test_a_checkpoint_goes_on_in_another_number_of_processes(report):
    assert report["between_rollouts"] < 1e-6
    assert report["within_a_rollout"] > 1e-6  # the interrupted rollout is drawn again
    assert "2 processes" in report["warning"] and "with 1" in report["warning"]
