# SPDX-License-Identifier: Apache-2.0
"""Episodes in two processes over gloo: the parameters of one process, and one end for all if one of them fails."""

import pytest
import torch
from agents_worker import EQUAL, equal
from launching import launch_forked
from naming import assert_names

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each process saved of each scenario: a start costs more than all of them."""
    folder = tmp_path_factory.mktemp("results")
    launch_forked("agents_worker", folder, processes=2, timeout=240)
    return [torch.load(folder / f"results_{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize("name", EQUAL)
def test_two_processes_equal_one(results, tmp_path, name):
    alone, both = equal(tmp_path, name), [result[name] for result in results]
    for result in both:
        for key, tensor in alone["state"].items():
            torch.testing.assert_close(result["state"][key], tensor, atol=1e-6, rtol=0, msg=key)
    logs = [[entry for entry in result["log"] if "loss" in entry] for result in (alone, both[0])]
    for metric in ("loss", "reward", "grad_norm", "episodes/turns", "tools/call_frequency", "frac_reward_zero_std"):
        expected, found = ([entry[metric] for entry in log if metric in entry] for log in logs)
        assert found == pytest.approx(expected, abs=1e-5), metric
    for count in (1, 5):  # fewer prompts than processes, and an uneven number
        expected = alone[f"eval_{count}"]
        assert expected["metrics"]["eval_episodes/turns"] >= 1
        for result in both:
            assert result[f"eval_{count}"]["metrics"] == pytest.approx(expected["metrics"], abs=1e-6)
        began = [sum(each) for each in zip(*(result[f"eval_{count}"]["began"] for result in both), strict=True)]
        assert began == expected["began"] and len(set(began)) == 1 and began[0] > 0  # no stand-in is played


@pytest.mark.parametrize("name", ["turns_in_one", "ppo"])
def test_rewards_of_turns_were_in_one_process_alone(results, name):
    first, second = (result[name]["gave"] for result in results)
    assert any(one != other for one, other in zip(first, second, strict=True))
    assert results[0][name]["counted"] == results[1][name]["counted"]  # and then counted in both


@pytest.mark.parametrize(
    ("fault", "pieces"),
    [
        ("Broken", ("AgentError", "Broken.reset", "row", "OSError", "the disk is full")),
        ("Silent", ("AgentError", "Silent.respond", "turn 1", "LookupError", "no word fits")),
        ("Hanging", ("AgentError", "Hanging.respond", "2 seconds", "tool_timeout")),
        ("Unjust", ("ZeroDivisionError", "nothing to share")),
    ],
)
def test_all_end_when_the_environment_of_one_fails(results, fault, pieces):
    other, own = (result[fault] for result in results)
    assert_names(own["error"], *pieces)
    assert_names(other["error"], "1 of 2", "process 1", *pieces)
    assert max(own["seconds"], other["seconds"]) < 40


def test_who_has_fewer_turns_waits(results):
    for result in results:
        assert result["Short"]["error"] is None and result["Short"]["steps"] == 2
    assert 1 < results[0]["Short"]["log"][0]["episodes/turns"] < 2


def test_a_process_that_draws_no_further_prompt_waits(results):
    first, second = (result["drawn"] for result in results)
    assert len(first["passes"]) == len(second["passes"]) > 2  # of two rollouts
    assert 0 in first["passes"] + second["passes"]
    assert all(torch.equal(tensor, second["state"][name]) for name, tensor in first["state"].items())
