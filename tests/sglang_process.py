# SPDX-License-Identifier: Apache-2.0
"""SGLang servers in processes of their own: the stand-in, and the real one where MINIMIND_HF_SGLANG_SERVE holds a
command that serves a folder on a port (`CMD MODEL_DIR PORT`)."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from tiny import make_policy, make_tokenizer

from minimind_hf.models.convert import convert

VARIABLE = "MINIMIND_HF_SGLANG_SERVE"
DOUBLE = Path(__file__).with_name("sglang_double.py")
START_TIMEOUT = 240  # seconds; the real server takes 15 to 40 on a quiet machine


class ServerProcess:
    """A server that can be killed and started again."""

    def __init__(self, command: list[str], folder: Path, log: Path):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.command, self.log = [*command, str(folder), str(self.port)], log
        self.process = None

    def start(self) -> None:
        environment = dict(os.environ)
        environment.pop("PYTHONPATH", None)  # the server has an environment of its own
        if str(DOUBLE) in self.command:
            environment["PYTHONPATH"] = os.pathsep.join([str(DOUBLE.parent), str(DOUBLE.parents[1])])
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def wait(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if httpx.get(f"{self.url}/health", timeout=30, trust_env=False).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.5)
        raise RuntimeError(f"{self.command} did not come up:\n{self.log.read_text()[-3000:]}")

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


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
