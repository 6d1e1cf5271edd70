# SPDX-License-Identifier: Apache-2.0
"""One run at a time writes to an output folder, and what a run leaves behind keeps no other out."""

import errno
import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path

import folder_worker
import pytest
from launching import IMPORTED
from naming import assert_names, raises_naming
from peft import LoraConfig
from tiny import GRPO, tiny_trainer
from transformers.utils import logging

from minimind_hf import GRPOConfig
from minimind_hf.trainer.checkpoints.run_folder import LOCK_FILE, FolderInUseError, only_run_in


@contextmanager
def holding(folder: Path, forks: str | None = None) -> Iterator[tuple[BaseProcess, Event]]:
    """A process that holds the folder, and the event that it does."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    held = context.Event()
    holder = context.Process(target=folder_worker.hold, args=(folder, forks, held))
    holder.start()
    try:
        yield holder, held
    finally:
        holder.kill()
        holder.join()


def refused(folder: Path, process: int) -> None:
    with raises_naming(FolderInUseError, folder, f"process {process}", "output_dir"), only_run_in(folder):
        pass
    assert (folder / LOCK_FILE).read_text() == f"{process}\n"  # it leaves the file of the other alone


def free(folder: Path) -> None:
    with only_run_in(folder):
        assert (folder / LOCK_FILE).read_text() == f"{os.getpid()}\n"
    assert os.listdir(folder) == []


def test_one_run_at_a_time_in_a_folder(make_trainer):
    trainer = make_trainer(max_steps=1)
    folder = trainer.args.output_dir
    with only_run_in(folder), raises_naming(FolderInUseError, folder, f"process {os.getpid()}"):
        trainer.train()
    Path(folder, LOCK_FILE).write_text("4711\n")  # of a run that was killed
    trainer.train()
    make_trainer(max_steps=1).train()
    assert not Path(folder, LOCK_FILE).exists()


def test_an_error_frees_the_folder(tmp_path):
    with pytest.raises(KeyError), only_run_in(tmp_path):
        raise KeyError
    free(tmp_path)


def test_another_process_holds_it_until_it_ends(tmp_path):
    with holding(tmp_path) as (holder, held):
        assert held.wait(60)
        refused(tmp_path, holder.pid)
    assert (tmp_path / LOCK_FILE).exists()
    free(tmp_path)


def test_a_forked_child_does_not_free_it(tmp_path):
    with holding(tmp_path, "let_child_leave") as (holder, held):
        assert held.wait(60)
        refused(tmp_path, holder.pid)


def test_a_forked_child_that_lives_on_does_not_hold_it(tmp_path):
    with holding(tmp_path, "die_before_child") as (holder, _):
        holder.join(60)
        assert holder.exitcode == -9
        free(tmp_path)


def test_a_file_system_without_locks_goes_unguarded(tmp_path, monkeypatch, caplog):
    fcntl = pytest.importorskip("fcntl")

    def flock(*args):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(logging.get_logger("minimind_hf"), "propagate", True)
    with only_run_in(tmp_path):
        assert len(caplog.messages) == 1 and str(tmp_path / LOCK_FILE) in caplog.messages[0]
        with only_run_in(tmp_path):
            pass
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_written_to_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with raises_naming(OSError, tmp_path / "file"), only_run_in(tmp_path / "file"):
        pass


def test_nothing_is_written_through_a_link(tmp_path):
    outside, folder = tmp_path / "outside", tmp_path / "run"
    outside.write_text("kept")
    folder.mkdir()
    link = folder / LOCK_FILE
    link.symlink_to(outside)
    with raises_naming(ValueError, link, outside), only_run_in(folder):
        pass
    assert outside.read_text() == "kept" and link.is_symlink()


def test_whole_weights_are_not_saved_beside_adapters(make_trainer, tmp_path):
    lora = {"peft_config": LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"], r=2)}
    config = GRPOConfig(**{**GRPO, "output_dir": str(tmp_path), "max_steps": 1})
    first = tiny_trainer(config, **lora)
    first.train()
    first.save_model()
    with raises_naming(ValueError, tmp_path, "adapter_config.json", "output_dir"):
        make_trainer(output_dir=str(tmp_path)).train()
    tiny_trainer(config, **lora).train()  # adapters may follow


@pytest.mark.parametrize("save_steps", [1, 10])
def test_an_interrupted_run_says_where_it_can_go_on(make_trainer, caplog, monkeypatch, save_steps):
    def reward(completions, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return [0.0] * len(completions)

    calls = []
    monkeypatch.setattr(logging.get_logger("minimind_hf"), "propagate", True)
    trainer = make_trainer(reward=reward, max_steps=5, save_strategy="steps", save_steps=save_steps)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    told = [text for text in caplog.messages if "interrupted at step 2" in text]
    assert len(told) == 1
    assert_names(told[0], *(("checkpoint-2", "--resume_from_checkpoint") if save_steps == 1 else ("save_steps",)))
