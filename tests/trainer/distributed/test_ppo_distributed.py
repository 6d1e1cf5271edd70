# SPDX-License-Identifier: Apache-2.0
"""PPO in two processes over gloo: the same parameters as in one, and one decision to stop."""

import pytest
import torch
from launching import launch_forked
from ppo_worker import two_steps


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each process saved of each scenario: a start costs more than all of them."""
    folder = tmp_path_factory.mktemp("results")
    launch_forked("ppo_worker", folder, processes=2)
    return [torch.load(folder / f"results_{rank}.pt", weights_only=False) for rank in range(2)]


def test_two_processes_equal_one(results, tmp_path):
    alone = two_steps(tmp_path)
    both = [result["two_steps"] for result in results]
    for result in both:
        for name, tensor in alone["state"].items():
            torch.testing.assert_close(result["state"][name], tensor, atol=1e-6, rtol=0, msg=name)
    for name in ("loss", "reward", "explained_variance", "approx_kl", "critic_loss", "values/mean", "kl_ref"):
        entries = [result["log"] for result in (alone, both[0])]
        found = [[entry[name] for entry in log if name in entry and "loss" in entry] for log in entries]
        assert found[0] and found[0] == pytest.approx(found[1], abs=1e-5), name
    # Evaluations of fewer prompts than processes, and of an uneven number
    for name, generations in (("ppo_1", 1), ("ppo_5", 1), ("grpo_1", 2), ("grpo_5", 2)):
        assert alone[name]["metrics"]["eval_loss"] != 0
        for result in both:
            assert result[name]["metrics"] == pytest.approx(alone[name]["metrics"], abs=1e-6), name
        times = [sum(counts) for counts in zip(*(result[name]["scored"] for result in both), strict=True)]
        assert times == alone[name]["scored"] == [generations] * len(times)


def moved(result: dict, first: int, last: int) -> list[bool]:
    """For each step from `first` to `last` (counted from 1), whether it changed a parameter."""
    states = result["states"]
    return [
        any(not torch.equal(states[step - 1][name], states[step - 2][name]) for name in states[0])
        for step in range(first, last + 1)
    ]


def test_one_process_above_the_limit_and_the_average_below_stops_nobody(results):
    # KL 0 and 0.5 * 0.6^2 = 0.18, 0.09 on average; the limit is 0.1. Four steps make a rollout.
    for result in (each[0.6] for each in results):
        assert all(moved(result, 2, 12))
        assert result["passes"] == list(range(1, 13))
        assert [entry["early_stopped"] for entry in result["log"][:12]] == [0.0] * 12


def test_the_average_above_the_limit_stops_all_until_the_next_rollout(results):
    # KL 0 and 0.5 * 0.7^2 = 0.245, 0.1225 on average.
    for result in (each[0.7] for each in results):
        assert all(moved(result, 2, 4))
        assert not any(moved(result, 5, 8))
        assert all(moved(result, 9, 12))
        for parameter, state in result["optimizers"][3].items():
            for name, tensor in state.items():
                assert torch.equal(result["optimizers"][7][parameter][name], tensor)
        # The step that finds out takes a pass, those that are skipped none.
        assert result["passes"] == [1, 2, 3, 4, 5, 5, 5, 5, 6, 7, 8, 9]
        log = result["log"][:12]
        assert [entry["early_stopped"] for entry in log] == [0.0] * 4 + [1.0] * 4 + [0.0] * 4
        assert [entry["step"] for entry in log] == list(range(1, 13))
