# SPDX-License-Identifier: Apache-2.0
"""`minimind-hf grpo` and so on: recipes by their names, without a checkout, in one process or several."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from launching import ROOT, Running, environment
from naming import assert_names

from minimind_hf import cli
from minimind_hf.commands import recipe


@pytest.fixture
def executed(monkeypatch) -> list[list[str]]:
    """The commands that this process would have become."""
    commands = []
    monkeypatch.setattr(os, "execv", lambda program, command: commands.append([program, *command]) or 0)
    monkeypatch.setattr(recipe, "_run_here", lambda prog, script, rest: commands.append([prog, script, *rest]))
    return commands


def test_every_recipe_is_there():
    for name in cli.RECIPES:
        assert (recipe.folder_of("recipes") / f"{name}.py").is_file()


def test_a_recipe_runs_here(executed):
    assert cli.main(["grpo", "--seed", "1", "--config=a.yaml"]) == 0
    assert executed == [["minimind-hf grpo", ROOT / "recipes" / "grpo.py", "--seed", "1", "--config=a.yaml"]]
    cli.main(["--debug", "sft", "--seed", "1"])
    assert executed[-1][2:] == ["--seed", "1", "--debug"]


@pytest.mark.parametrize(
    ("flags", "launcher"),
    [
        (["--num_processes", "2"], ["ddp.yaml", "--num_processes", "2"]),
        (["--num_processes=1"], ["cpu.yaml", "--num_processes", "1"]),
        (["--accelerate_config", "zero2"], ["zero2.yaml"]),
        (["--accelerate_config", "zero3", "--num_processes", "4"], ["zero3.yaml", "--num_processes", "4"]),
        (["--main_process_port", "123"], ["ddp.yaml", "--main_process_port", "123"]),
    ],
)
def test_several_processes_are_started_by_accelerate(executed, flags, launcher):
    cli.main(["ppo", "--seed", "1", *flags, "--use_cpu"])
    file, *rest = launcher
    expected = ["--config_file", str(ROOT / "accelerate_configs" / file), *rest]
    script = [str(ROOT / "recipes" / "ppo.py"), "--seed", "1", "--use_cpu"]
    assert executed == [[sys.executable, sys.executable, "-m", "accelerate.commands.launch", *expected, *script]]


def test_a_configuration_of_ones_own(executed, tmp_path):
    (tmp_path / "mine.yaml").write_text("num_processes: 2\n")
    cli.main(["grpo", "--accelerate_config", str(tmp_path / "mine.yaml")])
    assert executed[0][5] == str(tmp_path / "mine.yaml")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--num_processes", "0"], ["--num_processes", "0"]),
        (["--num_processes", "two"], ["--num_processes", "two"]),
        (["--accelerate_config", "zero9"], ["zero9", "zero2", "ddp"]),
    ],
)
def test_what_cannot_be_started_is_refused(executed, capsys, flags, named):
    assert cli.main(["grpo", *flags]) == 1
    error = capsys.readouterr().err
    assert error.startswith("minimind-hf grpo: error: ") and error.count("\n") == 1
    assert_names(error, *named)
    assert executed == []
    with pytest.raises(ValueError):
        cli.main(["--debug", "grpo", *flags])


@pytest.fixture
def installed(tmp_path) -> Path:
    """The package as its wheel lays it out, without a checkout."""
    folder = tmp_path / "site"
    shutil.copytree(ROOT / "minimind_hf", folder / "minimind_hf", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("recipes", "accelerate_configs"):
        shutil.copytree(ROOT / name, folder / "minimind_hf" / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.mark.slow
def test_from_the_wheel_in_an_empty_folder(installed, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    command = [sys.executable, "-m", "minimind_hf", "grpo", "--config", "grpo_minimind.yaml", "--batch_size", "8"]
    done = Running(command, environment() | {"PYTHONPATH": str(installed)}, empty).finish(expected=1)
    assert done.stderr.splitlines()[-1].startswith("minimind-hf grpo: error: --batch_size is a flag of MiniMind's")


def test_the_wheel_is_told_to_hold_them():
    import tomllib

    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    assert build["wheel"]["force-include"] == {
        name: f"minimind_hf/{name}" for name in ("recipes", "accelerate_configs")
    }
