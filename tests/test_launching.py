# SPDX-License-Identifier: Apache-2.0
"""What tests start ends with the code that they expect, or is killed with all that it started."""

import importlib.util
import multiprocessing
import os
import sys
import time

import psutil
import pytest
from launching import Running, environment, launch, launch_forked
from naming import assert_names, raises_naming

# Starts another process in a session of its own, as launchers do, and leaves its id
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open(sys.argv[1], "w").write(str(child.pid))
print("started", flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def parent(tmp_path):
    (tmp_path / "parent.py").write_text(PARENT)
    return tmp_path / "parent.py"


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_what_hangs_is_killed_with_what_it_started(parent, tmp_path):
    start = time.monotonic()
    with raises_naming(TimeoutError, parent, "3 s"):
        launch(parent, tmp_path / "pid", 600, timeout=3)
    assert time.monotonic() - start < 60
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_what_is_left_behind_is_killed(parent, tmp_path):
    assert launch(parent, tmp_path / "pid", 0).stdout == "started\n"
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_the_exit_code_is_checked(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys; sys.exit('because')")
    with pytest.raises(AssertionError) as raised:
        launch(script)
    assert_names(str(raised.value), script, 1, 0, "because")
    assert launch(script, expected=1).returncode == 1


def test_workers_have_one_thread_and_this_package(tmp_path):
    script = tmp_path / "script.py"
    find = "importlib.util.find_spec('{}').origin"
    found = f"{find.format('tiny')}, {find.format('minimind_hf')}"
    script.write_text(f"import importlib.util, os; print(os.environ['OMP_NUM_THREADS'], {found}, os.getcwd())")
    expected = ["1", importlib.util.find_spec("tiny").origin, importlib.util.find_spec("minimind_hf").origin]
    assert launch(script, folder=tmp_path).stdout.split() == [*expected, str(tmp_path)]


def test_a_log_gets_both_streams(tmp_path):
    code = "import os, sys; print(os.environ['SET'], flush=True); sys.exit('end')"
    running = Running([sys.executable, "-c", code], environment(SET="yes"), log=tmp_path / "log")
    assert running.process.wait(60) == 1 and not running.is_running
    assert (tmp_path / "log").read_text() == "yes\nend\n"
    assert "SET" not in os.environ


# A worker of two processes: each leaves what it sees, then one of them does as it is told
FORKED = """
import os, sys, time
import minimind_hf, torch

def main(folder, doing):
    assert sys.modules["minimind_hf.trainer.grpo"]
    rank = os.environ["RANK"]
    seen = [os.environ["WORLD_SIZE"], torch.get_num_threads(), minimind_hf.__file__]
    (folder / rank).write_text(" ".join(map(str, seen)))
    if rank == "1":
        {"end": int, "fail": {}.__getitem__, "hang": lambda _: time.sleep(600)}[doing](3)
"""


@pytest.fixture
def forked(tmp_path, monkeypatch):
    (tmp_path / "forked_worker.py").write_text(FORKED)
    monkeypatch.syspath_prepend(tmp_path)

    def run(doing, **options):
        launch_forked("forked_worker", tmp_path, doing, processes=2, **options)
        return [(tmp_path / str(rank)).read_text().split() for rank in range(2)]

    return run


def test_forks_have_one_thread_and_this_package(forked):
    assert forked("end") == [["2", "1", importlib.util.find_spec("minimind_hf").origin]] * 2


def test_each_fork_must_end_with_the_expected_code(forked):
    with pytest.raises(AssertionError) as raised:
        forked("fail")
    assert_names(str(raised.value), "forked_worker", "[0, 1]", "KeyError: 3")
    with pytest.raises(AssertionError):
        forked("fail", expected=1)


def test_forks_that_hang_are_killed(forked):
    with raises_naming(TimeoutError, 1, 2, "forked_worker", "5 s"):
        forked("hang", timeout=5)
    assert not multiprocessing.active_children()
