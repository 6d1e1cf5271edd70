# SPDX-License-Identifier: Apache-2.0
"""GRPO, PPO and distillation, all weights and LoRA, in two processes under DDP, ZeRO and FSDP2: as in one process."""

import importlib.util
import json

import pytest
import torch
from launching import launch, launch_two_machines
from mode_runs import BROKEN, EXACT, RESUMED, RUNS, forget_precision, make_starts, run
from naming import assert_names
from peft import PeftModel
from safetensors.torch import load_file
from tiny import make_policy
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# accelerate config: (distributed_type, class that wraps the model, ZeRO stage)
MODES = {
    "ddp": ("MULTI_CPU", "DistributedDataParallel", None),
    "zero1": ("DEEPSPEED", "DeepSpeedEngine", 1),
    "zero2": ("DEEPSPEED", "DeepSpeedEngine", 2),
    "zero3": ("DEEPSPEED", "DeepSpeedEngine", 3),
    "zero3_offload": ("DEEPSPEED", "DeepSpeedEngine", 3),
    "fsdp2": ("FSDP", "FSDPModule", None),
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Folder of the runs in one process."""
    folder = tmp_path_factory.mktemp("alone")
    make_starts(folder)
    for name in RUNS:
        trainer = run(name, folder / name, processes=1)
        forget_precision()
        (folder / f"{name}.json").write_text(json.dumps(trainer.state.log_history))
    return folder


DIVERGENCE = "divergence"


def weights(folder):
    found = {path.relative_to(folder): load_file(path) for path in folder.rglob("*model.safetensors")}
    return {path: tensors for path, tensors in found.items() if "checkpoint-" not in str(path)}


def assert_close(found, expected, tolerance):
    assert found.keys() == expected.keys()
    for path, tensors in expected.items():
        assert found[path].keys() == tensors.keys(), path
        for name, tensor in tensors.items():
            assert found[path][name].dtype == torch.float32
            torch.testing.assert_close(found[path][name], tensor, atol=tolerance, rtol=0, msg=f"{path} {name}")


def series(log, name):
    return [entry[name] for entry in log if name in entry and "loss" in entry]


def evaluations(log):
    """What was measured on evaluation prompts, an uneven number, without the time it took."""
    found = [entry for entry in log if "eval_reward" in entry]
    return [
        {name: value for name, value in entry.items() if "second" not in name and "runtime" not in name}
        for entry in found
    ]


@pytest.mark.parametrize("mode", MODES)
def test_two_processes_equal_one(alone, mode, tmp_path):
    if mode.startswith("zero") and not importlib.util.find_spec("deepspeed"):
        pytest.skip("the extra deepspeed is not installed")
    make_starts(tmp_path)
    launch("modes_worker.py", tmp_path, config=mode, timeout=500)
    results = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    own, other = results.pop("engine_error_1")["error"], results.pop("engine_error_0")["error"]
    assert own == "ConnectionError: the server went away"
    assert_names(other, "1 of 2", "process 1", "ConnectionError")
    assert len(results) == 2 * (len(RUNS) + len(RESUMED) + len(BROKEN))
    for name in BROKEN:
        found, other = results.pop(f"{name}_1"), results.pop(f"{name}_0")
        assert_names(found["error"], "step 2", "save_steps")
        assert_names(other["error"], "step 2", "save_steps")
        assert not other["moved"], (name, other)

    kind, wrapper, stage = MODES[mode]
    for name, result in results.items():
        assert (result["distributed_type"], result["world_size"], result["zero_stage"]) == (kind, 2, stage), name
        assert wrapper in result["wrapped"], name

    if mode == "zero3_offload":  # torch's own where DeepSpeed has none for CPUs
        updated_by = {name: result["updated_by"] for name, result in results.items()}
        assert (updated_by["grpo_0"], updated_by["ppo_adam_0"]) == ("SGD", "DeepSpeedCPUAdam")

    for name in EXACT:
        assert_close(weights(tmp_path / name), weights(alone / name), 1e-6)
        log, expected = results[f"{name}_0"]["log"], json.loads((alone / f"{name}.json").read_text())
        for metric in (
            "loss",
            "reward",
            "grad_norm",
            "kl_ref",
            "critic_grad_norm",
            "explained_variance",
            "divergence",
        ):
            assert series(log, metric) == pytest.approx(series(expected, metric), abs=1e-4), (name, metric)
        assert len(evaluations(log)) == (2 if name in ("grpo", "ppo", "grpo_agent", "distill") else 0)
        for found, wanted in zip(evaluations(log), evaluations(expected), strict=True):
            assert found == pytest.approx(wanted, abs=1e-6), name

    reference = "grpo_sync/checkpoint-2/reference.pt"  # after two syncs
    found, expected = torch.load(tmp_path / reference), torch.load(alone / reference)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-6, rtol=0, msg=name)
        assert not torch.equal(tensor, make_policy().get_parameter(name))

    stops = series(json.loads((alone / "ppo_adam.json").read_text()), "early_stopped")
    assert 0 < sum(stops) < len(stops)
    assert series(results["ppo_adam_0"]["log"], "early_stopped") == stops

    # Skipped updates, moments of the optimizer, schedule: all come back.
    for name in RESUMED:
        rounding = 1e-6 if results[f"{name}_0"]["updated_by"] == "DeepSpeedCPUAdam" else 0  # of its powers of beta
        assert_close(weights(tmp_path / f"{name}_resumed"), weights(tmp_path / name), rounding)

    for name in ("bf16", "bf16_ppo"):  # its weights are float32 nevertheless
        assert_close(weights(tmp_path / name), weights(alone / name), 0.05)
        log = results[f"{name}_0"]["log"]
        assert len(series(log, "loss")) == 2
        assert [entry["step"] for entry in log if "eval_reward" in entry] == [0, 1, 2]

    for name in RUNS:
        if (tmp_path / name / "adapter_config.json").is_file():
            PeftModel.from_pretrained(make_policy(), tmp_path / name)
        else:
            AutoModelForCausalLM.from_pretrained(tmp_path / name)
    AutoModelForCausalLM.from_pretrained(tmp_path / "grpo_lora" / "merged")

    _, info = AutoModelForTokenClassification.from_pretrained(tmp_path / "ppo" / "critic", output_loading_info=True)
    assert not any(info[keys] for keys in ("missing_keys", "unexpected_keys", "mismatched_keys"))


def test_two_machines_equal_one_process(alone, tmp_path):
    launch_two_machines("modes_worker.py", tmp_path, "grpo", "each_machine", timeout=1100)
    for process in range(2):
        result = json.loads((tmp_path / f"grpo_{process}.json").read_text())
        assert (result["distributed_type"], result["world_size"], result["local_world_size"]) == ("MULTI_CPU", 2, 1)
    assert_close(weights(tmp_path / "grpo"), weights(alone / "grpo"), 1e-6)
    for machine in (tmp_path / "machine_0", tmp_path / "machine_1"):
        assert_close(weights(machine / "whole"), weights(alone / "grpo_sync"), 1e-6)
        assert_close(weights(machine / "resumed"), weights(machine / "whole"), 0)
        AutoModelForCausalLM.from_pretrained(machine / "resumed")
