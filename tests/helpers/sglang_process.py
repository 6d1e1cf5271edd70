# SPDX-License-Identifier: Apache-2.0
"""SGLang servers in processes of their own: the stand-in, and the real one where MINIMIND_HF_SGLANG_SERVE holds a
command that serves a folder on a port (`CMD MODEL_DIR PORT`). Starting one takes longest, so tests share them."""

import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from launching import Running, environment, free_port
from tiny import GRPO, make_policy, make_tokenizer, share_of_a, tiny_trainer

from minimind_hf import GRPOConfig, GRPOTrainer
from minimind_hf.models.convert import convert

VARIABLE = "MINIMIND_HF_SGLANG_SERVE"
DOUBLE = Path(__file__).with_name("sglang_double.py")
START_TIMEOUT = 600  # seconds; the real server takes 15 to 40 on a quiet machine
REAL = pytest.param("real", marks=[pytest.mark.sglang, pytest.mark.timeout(3 * START_TIMEOUT)])
KINDS = ["double", REAL]


class ServerProcess:
    """A server that can be killed and started again."""

    def __init__(self, command: list[str], folder: Path, log: Path):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.command, self.log = [*command, str(folder), str(self.port)], log
        self.running: Running | None = None

    def start(self) -> None:
        variables = environment()
        if str(DOUBLE) not in self.command:
            del variables["PYTHONPATH"]  # the real server has an environment of its own
        self.running = Running(self.command, variables, log=self.log)

    def wait(self) -> None:
        """Returns once it is up.

        Raises:
            RuntimeError: If it ends before, or is not up in time, with the end of its log.
        """
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline and self.is_running:
            try:
                if httpx.get(f"{self.url}/health", timeout=30, trust_env=False).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.5)
        raise RuntimeError(f"{self.command} did not come up:\n{self.log.read_text()[-3000:]}")

    def kill(self) -> None:
        if self.running is not None:
            self.running.kill()

    @property
    def is_running(self) -> bool:
        return self.running is not None and self.running.is_running


class SharedServers:
    """Servers for all tests of a session, by kind (`"double"` or `"real"`) and number; a killed one is started again.

    Args:
        root (`Path`): Where the served folder and their logs go.
    """

    def __init__(self, root: Path):
        self._root = root
        self._folder: Path | None = None
        self._servers: dict[tuple[str, int], ServerProcess] = {}

    def get(self, kind: str, number: int = 0) -> ServerProcess:
        """Returns a server that is up, whatever weights it serves; skips the test where there is none."""
        if (kind, number) not in self._servers:
            command = command_of(kind)
            self._folder = self._folder or make_served_folder(self._root)
            self._servers[kind, number] = ServerProcess(command, self._folder, self._root / f"{kind}-{number}.log")
        server = self._servers[kind, number]
        if not server.is_running:
            server.start()
        server.wait()
        return server

    def kill(self) -> None:
        for server in self._servers.values():
            server.kill()


def make_served_folder(root: Path) -> Path:
    """A MiniMind in the layout that is served, with weights that are not the trainer's."""
    model = make_policy(seed=9)
    model.save_pretrained(root / "minimind")
    make_tokenizer().save_pretrained(root / "minimind")
    return convert(root / "minimind", root / "served", to="qwen3")


def command_of(kind: str) -> list[str]:
    """How to serve with the stand-in (`"double"`) or the real server (`"real"`); skips where there is none."""
    if kind == "double":
        return [sys.executable, str(DOUBLE)]
    if not os.environ.get(VARIABLE):
        pytest.skip(f"{VARIABLE} does not hold a command that serves a model folder on a port")
    return shlex.split(os.environ[VARIABLE])


def make_server_trainer(
    folder: Path, model=None, reward: Callable = share_of_a, engine: object = None, **changes
) -> GRPOTrainer:
    """A run of three steps, of 8 completions each, with completions from servers or an engine object."""
    settings = {"output_dir": str(folder), **GRPO, "max_steps": 3, "max_completion_length": 12, "max_grad_norm": 1.0}
    if engine is None:
        settings |= {"rollout_engine": "sglang", "server_timeout": START_TIMEOUT}
    return tiny_trainer(GRPOConfig(**settings | changes), model, reward, engine=engine)
