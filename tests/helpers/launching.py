# SPDX-License-Identifier: Apache-2.0
"""Every process that a test starts is started here: whatever hangs is killed with all that it started, and the exit
code is checked.

    launch("ppo_worker.py", folder)                    # one process; the worker may fork others itself, see `fork`
    launch("ppo_worker.py", folder, processes=2)       # by torch.distributed.run
    launch("modes_worker.py", folder, config="zero2")  # by accelerate launch, as users do
    launch_forked("ppo_worker", folder, processes=2)   # without a launcher and without the seconds that imports take;
                                                       # of one process too, which may `fork` others itself
    Running([BROWSER, *flags]).finish()                # another command

In a worker, `fork(work, processes)` starts processes that have imported everything, and `wait` looks after them.
"""

import contextlib
import gc
import importlib
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import psutil

HELPERS = Path(__file__).resolve().parent
WORKERS = HELPERS.parent / "workers"
ROOT = HELPERS.parents[1]
PYTHON_PATH = (HELPERS, WORKERS, ROOT)  # and the package before what is installed
CONFIGS = ROOT / "accelerate_configs"
TIMEOUT = 280  # seconds; pytest's own is 300
IMPORTED = ["minimind_hf.trainer.grpo", "minimind_hf.trainer.ppo"]  # once, for all processes of `launch_forked`
MARK = "MINIMIND_HF_TEST_PROCESS"  # a variable by which a family of processes is found


def launch(
    script: str | Path,
    *arguments: object,
    processes: int = 1,
    config: str | None = None,
    expected: int = 0,
    timeout: float = TIMEOUT,
    folder: Path | None = None,
    **variables: str,
) -> subprocess.CompletedProcess:
    """Runs a script to its end.

    Args:
        script (`str` or `Path`): The name of a worker, or where another script is.
        arguments: Its arguments, as `str` gives them.
        processes (`int`): More than one are started by torch.distributed.run.
        config (`str`, *optional*): Name of a file in accelerate_configs/, which then says how many are started.
        expected (`int`): The exit code to end with.
        timeout (`float`): Seconds after which all its processes are killed.
        folder (`Path`, *optional*): Where it runs.
        variables: Of its environment, besides [`environment`].

    Raises:
        AssertionError: With the end of its stderr, if it ends with another code.
        TimeoutError: If it does not end in time.
    """
    command = [*_launcher(processes, config), str(_path_of(script)), *map(str, arguments)]
    return Running(command, environment(**variables), folder).finish(timeout, expected)


def launch_two_machines(script: str, *arguments: object, timeout: float = TIMEOUT) -> None:
    """Runs a worker by a launcher for each of two "machines" of one process, which find each other on this one."""
    place = ["--num_processes", "2", "--main_process_ip", "127.0.0.1", "--main_process_port", str(free_port())]
    launcher = [*_accelerate("two_machines"), *place, "--machine_rank"]
    worker = [str(_path_of(script)), *map(str, arguments)]
    machines = [Running([*launcher, rank, *worker], environment()) for rank in range(2)]
    try:
        for machine in machines:
            machine.finish(timeout)
    finally:
        for machine in machines:
            machine.kill()


def launch_forked(
    worker: str, *arguments: object, processes: int, timeout: float = TIMEOUT, expected: int = 0
) -> None:
    """Runs `main(*arguments)` of a worker in processes that a server of multiprocessing forks, joined as by torchrun.

    Unlike torchrun, nothing ends a process when another one fails: each has to end by itself.

    Args:
        worker (`str`): Name of the worker's module.
        arguments: What its `main` takes.
        processes (`int`): How many.
        timeout (`float`): Seconds after which all are killed.
        expected (`int`): The exit code that each ends with.

    Raises:
        AssertionError: With the end of their stderr, if one ends with another code.
        TimeoutError: If one does not end in time.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        shared = (worker, arguments, processes, port, Path(folder))
        family = [context.Process(target=_run_worker, args=(rank, *shared)) for rank in range(processes)]
        try:
            for process in family:
                process.start()
            end = time.monotonic() + timeout
            for process in family:
                process.join(max(end - time.monotonic(), 0))
            codes = [process.exitcode for process in family]
            errors = "\n".join(cause(_text(path)) for path in sorted(Path(folder).iterdir()))
            if None in codes:
                raise TimeoutError(f"{codes.count(None)} of {processes} of {worker} hang after {timeout} s:\n{errors}")
            assert codes == [expected] * processes, f"{worker} ended with {codes}, not {expected}:\n{errors}"
        finally:
            for process in family:
                process.kill()
                process.join()


def _run_worker(rank: int, worker: str, arguments: tuple, processes: int, port: int, folder: Path) -> None:
    import torch

    gc.freeze()
    torch.set_num_threads(1)
    os.dup2(os.open(folder / f"{rank}.txt", os.O_WRONLY | os.O_CREAT), 2)
    _join(rank, processes, port)
    importlib.import_module(worker).main(*arguments)


def _launcher(processes: int, config: str | None) -> list[str]:
    if config is not None:
        return [*_accelerate(config), "--main_process_port", str(free_port())]
    if processes > 1:
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    return [sys.executable]


def _accelerate(config: str) -> list[str]:
    return [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(CONFIGS / f"{config}.yaml")]


def _path_of(script: str | Path) -> Path:
    return script if isinstance(script, Path) else WORKERS / script


def environment(**variables: str) -> dict[str, str]:
    """One thread a process, and the modules of the tests and the package of this checkout on the path."""
    usual = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    usual["PYTHONPATH"] = os.pathsep.join(map(str, PYTHON_PATH))
    return {**os.environ, **usual, **variables}


class Running:
    """A command in a session of its own, which is killed with all that it started.

    Args:
        command (`list`): What to run.
        environment (`Mapping[str, str]`, *optional*): All its variables; unset, those of this process.
        folder (`Path`, *optional*): Where it runs.
        log (`Path`, *optional*): File to append stdout and stderr to; unset, [`finish`] returns them.
    """

    def __init__(
        self,
        command: Sequence[object],
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        log: Path | None = None,
    ):
        # Launchers put their workers into sessions of their own, so the group of the command would not be all of them.
        self._mark = uuid.uuid4().hex
        environment = {**(os.environ if environment is None else environment), MARK: self._mark}
        # Files, since a pipe stays open for as long as any process holds it
        self._folder = tempfile.TemporaryDirectory()
        self._out = log or Path(self._folder.name, "out")
        self._err = log or Path(self._folder.name, "err")
        with self._out.open("ab") as out, self._err.open("ab") as err:
            self.process = subprocess.Popen(
                [str(part) for part in command],
                stdout=out,
                stderr=err,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )

    def finish(self, timeout: float = TIMEOUT, expected: int = 0) -> subprocess.CompletedProcess:
        """Waits for the end and checks the exit code; see [`launch`]."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.process.args} hangs after {timeout} s:\n{cause(_text(self._err))}") from None
        finally:
            self.kill()
        out, err = _text(self._out), _text(self._err)
        assert code == expected, f"{self.process.args} ended with {code}, not {expected}:\n{cause(err)}"
        return subprocess.CompletedProcess(self.process.args, code, out, err)

    def wait_for(self, text: str, timeout: float = 60) -> str:
        """Returns what it has printed, once a text is in it."""
        end = time.monotonic() + timeout
        while text not in _text(self._out):
            if time.monotonic() > end or not self.is_running:
                self.kill()
                raise TimeoutError(f"{self.process.args} did not print {text!r}:\n{cause(_text(self._err))}")
            time.sleep(0.01)
        return _text(self._out)

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """Kills the command and everything that it started, at once."""
        while family := [process for process in psutil.process_iter() if _mark_of(process) == self._mark]:
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(family, timeout=10)
        self.process.wait()


def _mark_of(process: psutil.Process) -> str | None:
    try:
        return None if process.status() == psutil.STATUS_ZOMBIE else process.environ().get(MARK)
    except psutil.Error:
        return None  # it ended meanwhile, or is of another user


def _text(path: Path) -> str:
    return path.read_text(errors="replace")


def cause(stderr: str) -> str:
    """The end of what the processes themselves wrote about an error, without what their launcher says of it."""
    own = [line for line in stderr.splitlines() if line.startswith("[rank")]
    return "\n".join(own[-60:]) or stderr[-6000:]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# In a worker: processes that have imported everything, so that a start costs nothing


def fork(
    work: Callable[[int], None],
    processes: int,
    errors: Path | None = None,
    leave: Callable[[int], None] = os._exit,
) -> list[int]:
    """Starts `work(rank)` in each process, joined by torch's environment variables.

    Args:
        work (`Callable`): Ends the process with status 1 if it raises.
        processes (`int`): How many.
        errors (`Path`, *optional*): Folder that gets what each writes to stderr, as `RANK.txt`.
        leave (`Callable`): How a process ends: at once, or by `sys.exit` as scripts do.

    Returns:
        `list[int]`: Their ids.
    """
    port = free_port()
    gc.freeze()  # or each would search everything that is imported for garbage, at its end too
    started = []
    for rank in range(processes):
        child = os.fork()
        if child == 0:
            _run(work, rank, processes, port, errors, leave)
        started.append(child)
    return started


def _run(
    work: Callable[[int], None],
    rank: int,
    processes: int,
    port: int,
    errors: Path | None,
    leave: Callable[[int], None],
) -> None:
    if errors is not None:
        os.dup2(os.open(errors / f"{rank}.txt", os.O_WRONLY | os.O_CREAT), 2)
    if processes > 1:
        _join(rank, processes, port)
    status = 1
    try:
        work(rank)
        status = 0
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    leave(status)


def _join(rank: int, processes: int, port: int) -> None:
    """Sets the variables by which torch.distributed finds the others."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
    os.environ.update(address | {"RANK": str(rank), "LOCAL_RANK": str(rank)})


def wait(
    children: list[int], until: Callable[[], bool] = lambda: False, timeout: float = 600
) -> dict[int, int] | None:
    """Waits for all to end.

    Returns:
        Their exit statuses (a signal as a negative number), or `None` as soon as `until()` holds.

    Raises:
        TimeoutError: If some do not end.
    """
    statuses: dict[int, int] = {}
    end = time.monotonic() + timeout
    while len(statuses) < len(children):
        if until():
            return None
        for child in set(children) - set(statuses):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                statuses[child] = os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            kill(set(children) - set(statuses))
            raise TimeoutError(f"{len(children) - len(statuses)} of {len(children)} processes hang after {timeout} s")
        time.sleep(0.0005)
    return statuses


def kill(children: Iterable[int]) -> None:
    """Kills forks at once and takes leave of each."""
    for child in children:
        os.kill(child, 9)
    for child in children:
        os.waitpid(child, 0)
