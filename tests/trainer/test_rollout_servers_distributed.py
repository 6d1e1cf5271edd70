# SPDX-License-Identifier: Apache-2.0
"""Two processes (gloo) with one rollout server: the same parameters as one, and no process goes on alone."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from sglang_double import SGLangDouble, answers, changes, takes
from sglang_process import ServerProcess, command_of, make_served_folder
from tiny import make_policy

from minimind_hf.rollout.exported_weights import exported_config, exported_weights, write_weights

WORKER = Path(__file__).with_name("rollout_worker.py")
TIMEOUT = 200  # seconds; a run takes about 15 on a quiet machine


@pytest.fixture
def double(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    model = make_policy(seed=9)
    write_weights(exported_weights(model), exported_config(model), folder)
    double = SGLangDouble(folder)
    yield double
    double.stop()


def run(folder: Path, processes: int, double, reward="share_of_a", **changes) -> list[dict]:
    """Returns what each process left; a hang ends in an error."""
    folder.mkdir()
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    command = [*launcher, str(WORKER), str(folder), reward, json.dumps({"sglang_base_url": [double.url], **changes})]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment["PYTHONPATH"] = os.pathsep.join([str(WORKER.parents[1]), str(WORKER.parents[2])])
    subprocess.run(command, env=environment, timeout=TIMEOUT, capture_output=True, text=True)
    return [torch.load(folder / f"result_{rank}.pt", weights_only=False) for rank in range(processes)]


def test_two_processes_equal_one(tmp_path, double):
    (alone,) = run(tmp_path / "one", 1, double)
    asked = len(double.requests["/generate"])
    both = run(tmp_path / "two", 2, double)
    assert len(double.requests["/generate"]) == 2 * asked
    assert len(double.versions) == 6  # one sync a step, whatever the number of processes
    for result in both:
        for name, tensor in alone["state"].items():
            torch.testing.assert_close(result["state"][name], tensor, atol=1e-6, rtol=0, msg=name)
    difference = [entry["sampling/sampling_logp_difference/max"] for entry in both[0]["log"] if "loss" in entry]
    assert len(difference) == 3 and max(difference) < 1e-4


@pytest.mark.sglang
def test_two_processes_with_the_real_server(tmp_path):
    """It draws at random, so that one process would see other tokens; what must hold is seen in what was drawn."""
    (tmp_path / "model").mkdir()
    server = ServerProcess(command_of("real"), make_served_folder(tmp_path / "model"), tmp_path / "server.log")
    server.start()
    try:
        server.wait()
        first, second = run(tmp_path / "two", 2, server, server_timeout=200)
    finally:
        server.kill()
    assert all(torch.equal(tensor, second["state"][name]) for name, tensor in first["state"].items())
    entries = [entry for entry in first["log"] if "loss" in entry]
    assert [entry["sampling/staleness"] for entry in entries] == [0.0] * 3
    assert max(entry["sampling/sampling_logp_difference/max"] for entry in entries) < 1e-4


def drop_logprob(items):
    items[0]["meta_info"]["output_token_logprobs"].pop()
    return items


FAULTS = {
    "an answer to one process": ({}, [takes(0)] * 5 + [changes(drop_logprob)], "that do not belong to its"),
    "a refusal to one process": ({}, [takes(0)] * 5 + [answers(400, {"error": "no"})], "answered 400: no"),
    "a reward of one process": ({"reward": "failing"}, [], "this reward knows no answer"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_fails_in_one_process_ends_both_with_the_same_message(tmp_path, double, fault):
    options, faults, message = FAULTS[fault]
    double.next("/generate", *faults)
    start = time.monotonic()
    results = run(tmp_path / "run", 2, double, **options)
    assert time.monotonic() - start < TIMEOUT
    assert all(message in result["error"] for result in results), results
    assert sum(result["error"].startswith("RuntimeError: ") for result in results) == 1


def test_a_server_that_is_gone_ends_both_with_a_checkpoint(tmp_path, double):
    def die(answer):
        double.stop()
        return answer()

    double.next("/generate", *[takes(0)] * 5, die)
    results = run(tmp_path / "run", 2, double, server_timeout=15)
    assert all("A checkpoint was saved" in result["error"] for result in results), results
    (checkpoint,) = (tmp_path / "run" / "run").glob("checkpoint-*")
    assert {f"rollout_state_{rank}.pt" for rank in (0, 1)} <= {path.name for path in checkpoint.iterdir()}
