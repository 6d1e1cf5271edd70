# SPDX-License-Identifier: Apache-2.0
"""What a CUDA device adds to an estimate, and which devices a run is said to fit."""

import pytest
from naming import assert_names, raises_naming
from test_estimate import CONFIG

from minimind_hf.cli import main
from minimind_hf.estimate import DEVICES, KNOWN_MODELS, Setting, estimate, fitting_devices, fitting_table, shape_of
from minimind_hf.estimate.devices import COURSES, MOST_ROWS, _in_passes_of, most_rows, usable

GIB = 2**30
SIZES = {
    "MiniMind 26M": 26e6,
    "MiniMind 64M": 64e6,
    "MiniMind 104M": 104e6,
    "MiniMind 200M (mixture of experts)": 198e6,
    "Qwen3 0.6B": 596e6,
    "Qwen3 1.7B": 1.72e9,
}


def test_the_models_are_as_large_as_their_names_say():
    assert list(SIZES) == list(KNOWN_MODELS)
    for name, size in SIZES.items():
        assert KNOWN_MODELS[name]().parameters == pytest.approx(size, rel=0.02)


def test_a_device_adds_its_context_graphs_and_fragments():
    shape = shape_of(CONFIG)
    plain, cuda = (estimate(shape, Setting(on_cuda=on_cuda)) for on_cuda in (False, True))
    assert plain.graphs == plain.fragments == 0
    assert cuda.libraries > 500 * 2**20 and cuda.graphs > 0
    assert cuda.fragments == pytest.approx(0.08 * (cuda.tensors + cuda.graphs), rel=1e-6)
    assert cuda.total == cuda.tensors + cuda.libraries + cuda.graphs + cuda.fragments
    assert [name for name, _ in plain.rows()][-3:] == ["update", "libraries", "total"]
    assert [name for name, _ in cuda.rows()][-3:] == ["graphs", "fragments", "total"]


def test_bfloat16_computes_in_about_half_the_memory_with_whole_weights():
    shape = shape_of(CONFIG)
    wide, narrow = (estimate(shape, Setting(on_cuda=True, rows=96, bf16=bf16)) for bf16 in (False, True))
    assert narrow.policy == wide.policy and narrow.optimizer == wide.optimizer
    assert 0.5 * wide.update < narrow.update < 0.7 * wide.update  # norms keep float32
    copy = 2 * shape.parameters  # graphs read float32 weights where they are, and a copy in bfloat16
    assert narrow.kept == narrow.rollout == wide.rollout // 2 + copy


def test_devices_with_room():
    assert fitting_devices(0) == list(DEVICES)
    assert fitting_devices(23 * GIB) == [24, 40, 80, 141]
    assert fitting_devices(24 * GIB) == [40, 80, 141]  # not all of it is free
    assert fitting_devices(200 * GIB) == []


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_the_most_rows_fit_and_one_more_does_not(algorithm):
    shape = KNOWN_MODELS["MiniMind 64M"]()
    setting = Setting(algorithm=algorithm, on_cuda=True, bf16=True, completion=1024, prompt=256, rollout_rows=12)
    rows = [most_rows(shape, setting, device) for device in DEVICES]
    assert rows == sorted(rows) and 0 < rows[0] < rows[-1] == MOST_ROWS
    for device, most in zip(DEVICES, rows, strict=True):
        assert estimate(shape, _in_passes_of(most, setting)).total <= usable(device)
        if most < MOST_ROWS:
            assert estimate(shape, _in_passes_of(most + 1, setting)).total > usable(device)


def test_the_table():
    setting = Setting(on_cuda=True, completion=1024, prompt=256, rollout_rows=12)
    table = fitting_table(setting)
    assert [row[:2] for row in table] == [(name, course.name) for name in KNOWN_MODELS for course in COURSES]
    assert all(len(row) == 2 + len(DEVICES) for row in table)
    cells = {row[:2]: row[2:] for row in table}
    assert cells["MiniMind 26M", "GRPO"][0] != "no"
    assert cells["Qwen3 1.7B", "PPO"][4] == "no" != cells["Qwen3 1.7B", "LoRA"][4]  # 16 bytes a parameter, twice


def test_command_says_what_fits(tmp_path, capsys):
    CONFIG.save_pretrained(tmp_path)
    assert main(["estimate", str(tmp_path), "--device", "cuda", "--bf16"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "It fits devices of 8, 12, 16, 24, 40, 80, 141 GB."
    huge = ["--per_device_train_batch_size", "60000", "--max_completion_length", "8000"]
    assert main(["estimate", str(tmp_path), "--device", "cuda", *huge]) == 0
    assert_names(capsys.readouterr().out.splitlines()[-1], "none", 141)


def test_command_prints_the_table(capsys):
    assert main(["estimate", "--device", "cuda", "--bf16", "--max_completion_length", "1024"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert_names(lines[0], 1024, "bfloat16")
    assert lines[1].split() == ["model", "course", *map(str, DEVICES)]
    assert len(lines) == 2 + len(KNOWN_MODELS) * len(COURSES)


def test_device_cpu_is_use_cpu(tmp_path, capsys):
    CONFIG.save_pretrained(tmp_path)
    said = []
    for flags in (["--use_cpu"], ["--device", "cpu"]):
        assert main(["estimate", str(tmp_path), "--max_completion_length", "1024", *flags]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


def test_a_place_that_is_two_is_refused(tmp_path, capsys):
    CONFIG.save_pretrained(tmp_path)
    assert main(["estimate", str(tmp_path), "--use_cpu", "--device", "cuda"]) == 1
    assert_names(capsys.readouterr().err, "--use_cpu", "--device cuda")


@pytest.mark.parametrize("flags", [[], ["--device", "cpu"]])
def test_without_a_model_only_devices_have_a_table(flags, capsys):
    with pytest.raises(SystemExit):
        main(["estimate", *flags])
    assert_names(capsys.readouterr().err, "name a model", "--device cuda")


def test_one_place_at_a_time():
    with raises_naming(ValueError, "on_cpu", "on_cuda"):
        Setting(on_cpu=True, on_cuda=True)
