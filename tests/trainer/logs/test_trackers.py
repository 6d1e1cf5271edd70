# SPDX-License-Identifier: Apache-2.0
"""Tables for trackers that have them, and runs that go on after a resume; the trackers are doubles of modules."""

import json
import os
import sys
from types import SimpleNamespace

import pytest
from transformers.integrations import TensorBoardCallback

from minimind_hf.trainer.logs import trackers
from minimind_hf.trainer.logs.trackers import TRACKERS_FILE, Trackers


@pytest.fixture
def modules(monkeypatch):
    """wandb, swanlab and trackio as far as they are used, and what was logged to each."""
    logged = {"wandb": [], "swanlab": [], "trackio": []}

    class Echart:
        def add(self, columns, rows):
            return columns, rows

    def table(columns, data):
        return columns, data

    run = SimpleNamespace(id="id-1", name="name-1")
    doubles = {
        "wandb": SimpleNamespace(run=run, Table=table, log=logged["wandb"].append),
        "trackio": SimpleNamespace(
            context_vars=SimpleNamespace(current_run=SimpleNamespace(get=lambda: run)),
            Table=table,
            log=logged["trackio"].append,
        ),
        "swanlab": SimpleNamespace(
            get_run=lambda: run,
            echarts=SimpleNamespace(Table=Echart),
            log=lambda values, step: logged["swanlab"].append(values),
        ),
    }
    for name, double in doubles.items():
        monkeypatch.setitem(sys.modules, name, double)
    return logged


def arguments(folder, *report_to, run_name=None):
    return SimpleNamespace(report_to=list(report_to), output_dir=str(folder), run_name=run_name)


def checkpoint_of(folder, step: int):
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": []}))
    return checkpoint


def test_completions_of_a_run_reach_every_tracker_with_tables(make_trainer, modules):
    trainer = make_trainer(log_completions=True, num_completions_to_print=1)
    trainer.run_log.trackers = Trackers(arguments(trainer.args.output_dir, *modules), [], is_main_process=True)
    trainer.train()
    for name, logged in modules.items():
        assert len(logged) == 2, name  # two steps
        columns, rows = logged[1]["completions"]
        assert columns[:3] == ["step", "prompt", "completion"]
        assert {"share_of_a", "reward", "advantage", "finish_reason"} <= set(columns)
        assert len(rows) == 8 and all(row[0] == 2 and isinstance(row[1], str) for row in rows)


def test_conversations_and_lists_become_text(modules):
    tracker = Trackers(arguments(".", "wandb"), [], is_main_process=True)
    messages = [{"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "2"}]
    tracker.log_completions([{"prompt": messages, "signals": {"right": None}, "ids": [1, 2]}], step=3)
    (logged,) = modules["wandb"]
    assert logged["train/global_step"] == 3
    columns, rows = logged["completions"]
    assert dict(zip(columns, rows[0], strict=True)) == {
        "step": 3,
        "prompt": "user: 1 + 1\nassistant: 2",
        "ids": "[1, 2]",
        "right": None,
    }


@pytest.mark.parametrize("name", ["wandb", "swanlab"])
def test_a_resumed_run_is_the_run_of_before(modules, tmp_path, monkeypatch, name):
    variables = [f"{name.upper()}_{what}" for what in ("RUN_ID", "RESUME")]
    for variable in variables:
        monkeypatch.delenv(variable, raising=False)
    Trackers(arguments(tmp_path, name), [], is_main_process=True).have_started()
    resumed = Trackers(arguments(tmp_path, name), [], is_main_process=True)
    resumed.go_on(checkpoint_of(tmp_path, 4))
    assert [os.environ[variable] for variable in variables] == ["id-1", "allow"]
    resumed.have_started()
    assert not any(variable in os.environ for variable in variables)  # the next run of this process is another


def test_what_the_user_set_stays(modules, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    Trackers(arguments(tmp_path, "wandb"), [], is_main_process=True).have_started()
    args = arguments(tmp_path, "wandb", "trackio", run_name="my name")
    resumed = Trackers(args, [], is_main_process=True)
    resumed.go_on(checkpoint_of(tmp_path, 4))
    resumed.have_started()
    assert os.environ["WANDB_RUN_ID"] == "mine"
    assert args.run_name == "my name"


def test_trackio_finds_its_run_by_name(modules, tmp_path):
    Trackers(arguments(tmp_path, "trackio"), [], is_main_process=True).have_started()
    args = arguments(tmp_path, "trackio")
    resumed = Trackers(args, [], is_main_process=True)
    resumed.go_on(checkpoint_of(tmp_path, 4))
    assert args.run_name == "name-1"
    resumed.have_started()
    assert args.run_name is None


def test_tensorboard_writes_on_and_drops_what_is_done_again(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(trackers, "_summary_writer", lambda: lambda **kwargs: opened.append(kwargs) or "writer")

    def callback(logging_dir):
        made = TensorBoardCallback.__new__(TensorBoardCallback)  # its own constructor needs the package
        made.logging_dir, made.tb_writer = logging_dir, None
        return made

    Trackers(arguments(tmp_path, "tensorboard"), [callback("runs/first")], is_main_process=True).have_started()
    assert json.loads((tmp_path / TRACKERS_FILE).read_text()) == {"tensorboard": "runs/first"}
    fresh = callback(None)
    Trackers(arguments(tmp_path, "tensorboard"), [fresh], is_main_process=True).go_on(checkpoint_of(tmp_path, 4))
    assert opened == [{"log_dir": "runs/first", "purge_step": 5}]
    assert fresh.tb_writer == "writer" and fresh.logging_dir == "runs/first"


@pytest.mark.parametrize(("main", "folder"), [(False, "here"), (True, "elsewhere")])
def test_another_process_or_a_checkpoint_of_another_folder_begins_a_new_run(
    modules, tmp_path, monkeypatch, main, folder
):
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    Trackers(arguments(tmp_path / "here", "wandb"), [], is_main_process=True).have_started()
    Trackers(arguments(tmp_path / "here", "wandb"), [], main).go_on(checkpoint_of(tmp_path / folder, 4))
    assert "WANDB_RUN_ID" not in os.environ
