# SPDX-License-Identifier: Apache-2.0
"""Shared by the benchmarks: workloads, models, a description of the machine, and the JSON line at the end."""

import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

from minimind_hf import MiniMindConfig, MiniMindForCausalLM


class Workload(NamedTuple):
    hidden_size: int
    num_layers: int
    prompt_length: int
    completion_length: int


WORKLOADS = {
    "tiny": Workload(128, 4, 64, 64),
    "chat": Workload(512, 8, 128, 128),
    "long": Workload(512, 8, 512, 64),
    "base": Workload(768, 8, 128, 64),
}
NUM_PROMPTS = 2
NUM_GENERATIONS = 6
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def make_model(workload: str, dtype: str = "float32", seed: int = 0) -> MiniMindForCausalLM:
    """A MiniMind with random weights, in the workload's size."""
    shape = WORKLOADS[workload]
    torch.manual_seed(seed)
    config = MiniMindConfig(hidden_size=shape.hidden_size, num_hidden_layers=shape.num_layers)
    return MiniMindForCausalLM(config).to(DTYPES[dtype])


def make_prompts(workload: str, vocab_size: int = 6400, seed: int = 0) -> list[list[int]]:
    """Random token ids, none of them special."""
    generator = torch.Generator().manual_seed(seed)
    shape = (NUM_PROMPTS, WORKLOADS[workload].prompt_length)
    return torch.randint(3, vocab_size, shape, generator=generator).tolist()


def machine_info() -> dict[str, Any]:
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def median(values: list[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).quantile(0.5))


def alternate(contestants: dict[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Runs each contestant once to warm up, then all in turn, so that other load on the machine affects all alike.

    Args:
        contestants (`dict[str, Callable]`): Each returns its seconds.

    Returns:
        `dict[str, list[float]]`: The seconds of each contestant's counted runs.
    """
    for run in contestants.values():
        run()
    seconds = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            seconds[name].append(run())
    return seconds


def print_json(result: dict[str, Any]) -> None:
    print(json.dumps(result), flush=True)


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
