# SPDX-License-Identifier: Apache-2.0
"""Starts workers in several processes as users do, by `accelerate launch`; whatever hangs ends in an error."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
CONFIGS = HERE.parents[1] / "accelerate_configs"


def launch(worker: str, *arguments: str, config: str = "ddp", timeout: int = 500) -> subprocess.CompletedProcess:
    """Runs a worker of this folder by a file of accelerate_configs/.

    Args:
        worker (`str`): Name of its file.
        arguments: Its arguments.
        config (`str`): Name of the config, without its ending.
        timeout (`int`): Seconds after which all its processes are killed and `subprocess.TimeoutExpired` is raised.
    """
    return _wait(_start(config, ["--main_process_port", str(free_port())], worker, arguments), timeout)


def launch_two_machines(worker: str, *arguments: str, timeout: int = 500) -> list[subprocess.CompletedProcess]:
    """The same by a launcher for each of two "machines" of one process, which find each other on this one."""
    place = ["--num_processes", "2", "--main_process_ip", "127.0.0.1", "--main_process_port", str(free_port())]
    started = [
        _start("two_machines", ["--machine_rank", str(machine), *place], worker, arguments) for machine in range(2)
    ]
    return [_wait(each, timeout) for each in started]


def _start(config: str, options: list[str], worker: str, arguments: Sequence[str]) -> subprocess.Popen:
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(CONFIGS / f"{config}.yaml")]
    command += [*options, str(HERE / worker), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parent), str(HERE.parents[1])])
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def _wait(started: subprocess.Popen, timeout: int) -> subprocess.CompletedProcess:
    try:
        output, errors = started.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, 9)
        raise
    return subprocess.CompletedProcess(started.args, started.returncode, output, errors)


def run_worker(worker: str, *arguments: str, timeout: int = 580, **variables: str) -> subprocess.CompletedProcess:
    """Runs a worker of this folder that starts its processes itself; one that fails fails the test.

    Args:
        worker (`str`): Name of its file.
        arguments: Its arguments.
        timeout (`int`): Seconds after which it is killed.
        variables: Of its environment, besides the usual ones.
    """
    command = [sys.executable, str(HERE / worker), *arguments]
    environment = worker_environment() | variables
    done = subprocess.run(command, env=environment, timeout=timeout, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-6000:]
    return done


def worker_environment() -> dict[str, str]:
    """One thread, and this folder's modules before what is installed."""
    path = os.pathsep.join([str(HERE), str(HERE.parent), str(HERE.parents[1])])
    return {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": path}


def cause(done: subprocess.CompletedProcess) -> str:
    """The end of what the processes themselves wrote about an error."""
    own = [line for line in done.stderr.splitlines() if line.startswith("[rank")]
    return "\n".join(own[-60:]) or done.stderr[-3000:]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
