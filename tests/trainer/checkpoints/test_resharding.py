# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of DeepSpeed in another number of processes: the run goes on as the one that was never stopped."""

from types import SimpleNamespace

import pytest
import torch
from launching import launch
from naming import assert_names, raises_naming
from resharding_worker import CASES
from safetensors.torch import load_file

from minimind_hf.trainer.checkpoints.resharding import _check_parameters, _repair, load_resharded
from minimind_hf.trainer.checkpoints.resuming import CheckpointError
from minimind_hf.trainer.checkpoints.state import ROLLOUT_STATE


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    pytest.importorskip("deepspeed", reason="the extra deepspeed is not installed")
    folder = tmp_path_factory.mktemp("resharding")
    launch("resharding_worker.py", folder, timeout=580)
    return folder


def weights(folder) -> dict[str, torch.Tensor]:
    found = [path.relative_to(folder) for path in folder.rglob("*model.safetensors")]
    files = [path for path in found if not path.parts[0].startswith(("checkpoint-", "best"))]
    return {f"{path} {name}": tensor for path in files for name, tensor in load_file(folder / path).items()}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(("stage", "name"), [case for case in CASES if case[1] != "sgd"])
def test_the_run_goes_on_as_if_it_had_never_stopped(finished, stage, name, processes):
    resumed = weights(finished / f"resumed_{stage}_{name}_{processes}")
    straight = weights(finished / f"straight_{stage}_{name}_{3 - processes}")
    stopped = weights(finished / f"straight_{stage}_{name}_{3 - processes}" / "checkpoint-2")
    assert resumed.keys() == straight.keys() == stopped.keys() and resumed
    assert ("critic" in " ".join(resumed)) == name.startswith("ppo")
    for key, tensor in straight.items():
        torch.testing.assert_close(resumed[key], tensor, atol=1e-6, rtol=0, msg=key)
    assert max((straight[key] - stopped[key]).abs().max() for key in straight) > 1e-3
    left = {path.name for path in (finished / f"straight_{stage}_{name}_{3 - processes}" / "checkpoint-2").iterdir()}
    assert not any("universal" in file for file in left)
    assert not (finished / f"resumed_{stage}_{name}_{processes}" / "_saving").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(("stage", "name"), [(2, "ppo"), (3, "grpo")])
def test_the_best_model_may_be_of_another_number_of_processes(finished, stage, name, processes):
    best = weights(finished / f"resumed_{stage}_{name}_{processes}" / "best")
    saved = weights(finished / f"straight_{stage}_{name}_{3 - processes}" / "checkpoint-2")
    assert best.keys() == saved.keys() and best
    assert all(torch.equal(best[key], tensor) for key, tensor in saved.items())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_cannot_be_converted_ends_all_processes(finished):
    alone, first, second = [(finished / f"sgd_{name}.txt").read_text() for name in ("1_0", "2_0", "2_1")]
    for said, count in ((alone, 2), (first, 1)):
        assert_names(said, "CheckpointError", count, "DeepSpeed", "exp_avg")
    assert_names(second, "RuntimeError", "1 of 2", "process 0", "CheckpointError")


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "checkpoint-1"
    (folder / "global_step1").mkdir(parents=True)
    (folder / "latest").write_text("global_step1")
    torch.save({"world_size": 2}, folder / ROLLOUT_STATE.format(rank=0))
    return folder


def test_parts_on_another_machine_are_missed(checkpoint, tmp_path):
    (checkpoint / "global_step1" / "zero_pp_rank_0_mp_rank_00_optim_states.pt").touch()
    alone = SimpleNamespace(num_processes=1, is_main_process=True)
    with raises_naming(CheckpointError, checkpoint, 1, 2):
        load_resharded(None, checkpoint, tmp_path / "run", alone)


def test_other_parameters_are_named(tmp_path):
    for name in ("0.weight", "2.weight"):
        (tmp_path / "zero" / name).mkdir(parents=True)
        (tmp_path / "zero" / name / "exp_avg.pt").touch()
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).requires_grad_(False))
    with raises_naming(CheckpointError, "checkpoint-1", "0.bias", "2.weight"):
        _check_parameters(tmp_path, model, "checkpoint-1")


@pytest.mark.parametrize("step", [torch.tensor(3.0), 3])
def test_each_group_counts_its_own_steps_and_keeps_its_settings(step):
    first, second = (torch.ones(2, requires_grad=True) for _ in range(2))
    optimizer = torch.optim.AdamW([{"params": [first], "weight_decay": 0.1}, {"params": [second], "lr": 0.2}])
    settings = optimizer.state_dict()["param_groups"]
    optimizer.param_groups[1].update(lr=optimizer.param_groups[0]["lr"], weight_decay=0.1)
    for part in (first, second):
        optimizer.state[part] = {"step": step, "exp_avg": torch.zeros(2), "exp_avg_sq": torch.zeros(2)}
    _repair(optimizer, settings)
    for part in (first, second):
        optimizer.state[part]["step"] += 1
    assert [float(optimizer.state[part]["step"]) for part in (first, second)] == [4, 4]
    assert [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups] == [(1e-3, 0.1), (0.2, 0.01)]
    assert [group["params"] for group in optimizer.param_groups] == [[first], [second]]
