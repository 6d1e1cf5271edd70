# SPDX-License-Identifier: Apache-2.0
"""One of two processes fails: all end soon, saying why. One has nothing to learn from: both go on."""

import json

import pytest
import torch
from launching import launch
from naming import assert_names

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    done = launch("fault_worker.py", folder, timeout=580)
    return json.loads(done.stdout.splitlines()[-1]) | {"folder": folder}


@pytest.mark.parametrize(
    ("fault", "own", "others"),
    [
        (
            "reward",
            ["KeyError", "no answer for this prompt"],
            ["RewardError", "scoring"],
        ),
        ("engine", ["ConnectionError: the server went away"], ["ConnectionError", "rollout"]),
        ("empty", ["EmptyEngine", "index 0"], ["EmptyEngine", "index 0", "rollout"]),
    ],
)
def test_an_error_in_one_process_ends_both_with_its_message(report, fault, own, others):
    found = report[fault]
    assert found["seconds"] < 60
    assert found["statuses"] == [1, 1]
    assert_names(found["errors"][0], "1 of 2", "process 1", *others)
    assert_names(found["errors"][1], *own)


def test_a_killed_process_ends_the_other(report):
    found = report["killed"]
    assert found["seconds"] < 60
    assert found["statuses"] == [1, -9]
    assert_names(found["errors"][0], "RuntimeError", "rollout", "connection")


def test_a_process_with_nothing_to_learn_from_does_not_hold_up_the_other(report):
    assert report["masked"]["statuses"] == [0, 0]
    weights = torch.load(report["folder"] / "masked" / "finished.pt")
    assert all(tensor.isfinite().all() for tensor in weights.values())


def test_a_checkpoint_goes_on_in_another_number_of_processes(report):
    assert report["between_rollouts"] < 1e-6
    assert report["within_a_rollout"] > 1e-6  # the interrupted rollout is drawn again
    checkpoint = report["folder"] / "within" / "two" / "checkpoint-2"
    (warning,) = [line for line in report["warning"].splitlines() if str(checkpoint) in line]
    assert_names(warning.replace(str(checkpoint), ""), 2, 1)
