# SPDX-License-Identifier: Apache-2.0
"""Two processes (gloo) with one rollout server: the same parameters as one, and no process goes on alone."""

import json
import time
from pathlib import Path

import pytest
import rollout_worker
import torch
from launching import launch, launch_forked
from naming import assert_names
from sglang_double import SGLangDouble, answers, changes, takes
from sglang_process import START_TIMEOUT
from tiny import make_policy

from minimind_hf.rollout.exported_weights import exported_config, exported_weights, write_weights

TIMEOUT = 200  # seconds; a run takes about 15 on a quiet machine
SLOW_TIMEOUT = 900  # with a real server, on a machine that is not quiet


@pytest.fixture
def double(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    model = make_policy(seed=9)
    write_weights(exported_weights(model), exported_config(model), folder)
    double = SGLangDouble(folder)
    yield double
    double.stop()


def run(
    folder: Path, processes: int, urls=(), reward="share_of_a", timeout=TIMEOUT, forked=False, **changes
) -> list[dict]:
    """Returns what each process left; those that are forked end with an error."""
    folder.mkdir()
    if urls:
        changes = {"sglang_base_url": urls, "server_timeout": 60} | changes
    if processes == 1:
        rollout_worker.main(folder, reward, changes)
    elif forked:
        launch_forked("rollout_worker", folder, reward, changes, processes=processes, timeout=timeout, expected=1)
    else:
        launch("rollout_worker.py", folder, reward, json.dumps(changes), processes=processes, timeout=timeout)
    return [torch.load(folder / f"result_{rank}.pt", weights_only=False) for rank in range(processes)]


def assert_same_states(results, expected, atol):
    for result in results:
        for name, tensor in expected["state"].items():
            torch.testing.assert_close(result["state"][name], tensor, atol=atol, rtol=0, msg=name)


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path, double):
    (alone,) = run(tmp_path / "one", 1, [double.url])
    asked = len(double.requests["/generate"])
    both = run(tmp_path / "two", 2, [double.url])
    assert len(double.requests["/generate"]) == 2 * asked
    assert len(double.versions) == 6  # one sync a step, whatever the number of processes
    assert_same_states(both, alone, atol=1e-6)
    difference = [entry["sampling/sampling_logp_difference/max"] for entry in both[0]["log"] if "loss" in entry]
    assert len(difference) == 3 and max(difference) < 1e-4


@pytest.mark.sglang
@pytest.mark.timeout(2 * SLOW_TIMEOUT + START_TIMEOUT)
def test_two_processes_with_the_real_server_equal_one(tmp_path, servers):
    """It draws at random: the one process trains on what the two have drawn."""
    options = {"timeout": SLOW_TIMEOUT, "server_timeout": START_TIMEOUT}
    both = run(tmp_path / "two", 2, [servers.get("real").url], **options)
    for result in both:
        entries = [entry for entry in result["log"] if "loss" in entry]
        assert [entry["sampling/staleness"] for entry in entries] == [0.0] * 3
        assert max(entry["sampling/sampling_logp_difference/max"] for entry in entries) < 1e-4
    drawn = [first | second for first, second in zip(both[0]["drawn"], both[1]["drawn"], strict=True)]
    assert [len(rollout) for rollout in drawn] == [2, 2, 2]  # each process has drawn for a prompt of its own
    torch.save(drawn, tmp_path / "drawn.pt")
    (alone,) = run(tmp_path / "one", 1, replayed=str(tmp_path / "drawn.pt"))
    assert_same_states(both, alone, atol=1e-9)
    start = make_policy().double().state_dict()
    assert any(not torch.equal(tensor, start[name]) for name, tensor in alone["state"].items())


def drop_logprob(items):
    items[0]["meta_info"]["output_token_logprobs"].pop()
    return items


FAULTS = {
    "an answer to one process": ({}, [takes(0)] * 5 + [changes(drop_logprob)], ["/generate", "log-probabilities"]),
    "a refusal to one process": ({}, [takes(0)] * 5 + [answers(400, {"error": "no"})], ["/generate", "400: no"]),
    "a reward of one process": (
        {"reward": "failing"},
        [],
        ["'failing_reward'", "LookupError: this reward knows no answer"],
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_fails_in_one_process_ends_both_with_the_same_message(tmp_path, double, fault):
    options, faults, named = FAULTS[fault]
    double.next("/generate", *faults)
    start = time.monotonic()
    results = run(tmp_path / "run", 2, [double.url], forked=True, **options)
    assert time.monotonic() - start < TIMEOUT
    for result in results:
        assert_names(result["error"], *named)
    assert sum(result["error"].startswith("RuntimeError: ") for result in results) == 1


def test_a_server_that_is_gone_ends_both_with_a_checkpoint(tmp_path, double):
    def die(answer):
        double.stop()
        return answer()

    double.next("/generate", *[takes(0)] * 5, die)
    results = run(tmp_path / "run", 2, [double.url], server_timeout=5, forked=True)
    (checkpoint,) = (tmp_path / "run" / "run").glob("checkpoint-*")
    for result in results:
        assert_names(result["error"], "ServerGoneError", double.url, f"--resume_from_checkpoint {checkpoint}")
    assert {f"rollout_state_{rank}.pt" for rank in (0, 1)} <= {path.name for path in checkpoint.iterdir()}
