# SPDX-License-Identifier: Apache-2.0
"""A distillation in two processes over gloo: the same parameters as in one. test_modes.py has the other modes."""

import pytest
import torch
from distill_worker import RUNS, train
from launching import launch_forked


def test_two_processes_equal_one(tmp_path):
    launch_forked("distill_worker", tmp_path, processes=2)
    both = [torch.load(tmp_path / f"results_{rank}.pt", weights_only=False) for rank in range(2)]
    for name in RUNS:
        alone = train(name, tmp_path / "alone" / name)
        for result in (each[name] for each in both):
            for parameter, tensor in alone["state"].items():
                torch.testing.assert_close(result["state"][parameter], tensor, atol=1e-8, rtol=0, msg=parameter)
            for metric in ("loss", "divergence", "entropy", "grad_norm", "eval_loss", "eval_divergence"):
                found, expected = ([log[metric] for log in each["log"] if metric in log] for each in (result, alone))
                assert len(expected) >= 1 and found == pytest.approx(expected, abs=1e-6), (name, metric)


def test_a_process_without_completions_of_its_own(tmp_path):
    """With a share of the data's answers, one process may have nothing to draw, and both go on."""
    launch_forked("distill_worker", tmp_path, "uneven", processes=2)
    shares = [torch.load(tmp_path / f"uneven_{rank}.pt") for rank in range(2)]
    assert any(own != other for own, other in zip(*(each["off_policy"] for each in shares), strict=True))
    for name, tensor in shares[0]["state"].items():
        assert torch.equal(shares[1]["state"][name], tensor), name
