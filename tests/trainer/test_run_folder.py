# SPDX-License-Identifier: Apache-2.0
"""One run at a time writes to an output folder, and what a run leaves behind keeps no other out."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from transformers.utils import logging

from minimind_hf.trainer.checkpoints.run_folder import LOCK_FILE, FolderInUseError, only_run_in

HOLDER = """
import os, sys, time
from minimind_hf.trainer.checkpoints.run_folder import only_run_in

def let_child_leave():
    child = os.fork()
    if child == 0:
        sys.exit()  # through the context
    os.waitpid(child, 0)

def die_before_child():
    if os.fork() == 0:
        time.sleep(20)
    os.kill(os.getpid(), 9)

with only_run_in(sys.argv[1]):
    if len(sys.argv) > 2:
        globals()[sys.argv[2]]()
    print("held", flush=True)
    time.sleep(60)
"""


def hold(folder: Path, *doing: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", HOLDER, str(folder), *doing], stdout=subprocess.PIPE, text=True)


def refused(folder: Path, process: int) -> None:
    said = f"{re.escape(str(folder))}.*process {process}.*output_dir"
    with pytest.raises(FolderInUseError, match=said), only_run_in(folder):
        pass
    assert (folder / LOCK_FILE).read_text() == f"{process}\n"  # it leaves the file of the other alone


def free(folder: Path) -> None:
    with only_run_in(folder):
        assert (folder / LOCK_FILE).read_text() == f"{os.getpid()}\n"
    assert os.listdir(folder) == []


def test_one_run_at_a_time_in_a_folder(make_trainer):
    trainer = make_trainer(max_steps=1)
    folder = trainer.args.output_dir
    with only_run_in(folder), pytest.raises(FolderInUseError, match=f"{folder}.*process {os.getpid()}"):
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
    with hold(tmp_path) as process:
        assert process.stdout.readline() == "held\n"
        refused(tmp_path, process.pid)
        process.kill()
    assert (tmp_path / LOCK_FILE).exists()
    free(tmp_path)


def test_a_forked_child_does_not_free_it(tmp_path):
    with hold(tmp_path, "let_child_leave") as process:
        assert process.stdout.readline() == "held\n"
        refused(tmp_path, process.pid)
        process.kill()


def test_a_forked_child_that_lives_on_does_not_hold_it(tmp_path):
    process = hold(tmp_path, "die_before_child")
    assert process.wait(timeout=60) == -9
    free(tmp_path)
    process.stdout.close()


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
    with pytest.raises(OSError, match="file"), only_run_in(tmp_path / "file"):
        pass


def test_nothing_is_written_through_a_link(tmp_path):
    outside, folder = tmp_path / "outside", tmp_path / "run"
    outside.write_text("kept")
    folder.mkdir()
    link = folder / LOCK_FILE
    link.symlink_to(outside)
    with pytest.raises(ValueError, match=f"{re.escape(str(link))}.*{re.escape(str(outside))}"), only_run_in(folder):
        pass
    assert outside.read_text() == "kept" and link.is_symlink()
