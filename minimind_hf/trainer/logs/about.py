# SPDX-License-Identifier: Apache-2.0
"""What a run was, for its run.json: command line, machine, versions, size of the model, date. No secrets."""

import os
import platform
import re
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer

from ...reports.diagnosis import HIDDEN, without_secrets
from ...reports.people import counted

_LIBRARIES = ("minimind-hf", "torch", "transformers", "trl", "accelerate", "peft", "datasets", "deepspeed")
_COMMAND = "minimind-hf "  # as the recipes are called that this package's own command runs, with their names
_SECRET_FLAG = re.compile(r"(?i)(--[\w-]*(?:token|key|secret|password|credential)s?)(?:=(.*))?")


def about_run(trainer: Trainer) -> dict[str, Any]:
    """Describes a run to people who will read its report.

    Returns:
        `dict`: `run_name` (unless it is the folder's), `output_dir`, `started`, `command`, `machine`, `versions`,
        `parameters` and `trainable_parameters` of the policy, `held_out_prompts` (if there is one evaluation set).
        Of a trainer that is not of this package, `policy` is the model that it trains.
    """
    args = trainer.args
    counts = parameter_counts(trainer.policy)
    found = {
        "run_name": args.run_name if args.run_name != args.output_dir else None,
        "output_dir": str(args.output_dir),
        "started": _date(datetime.now().astimezone()),
        "command": command_line(sys.argv),
        "machine": machine(args.world_size),
        "versions": versions(),
        "parameters": counts[0],
        "trainable_parameters": counts[1],
        "held_out_prompts": _held_out_prompts(trainer.eval_dataset),
    }
    return without_secrets({name: value for name, value in found.items() if value is not None})


def _date(now: datetime) -> str:
    return f"{now.day} {now:%B %Y, %H:%M %Z}"


def command_line(arguments: Sequence[str]) -> str:
    """The command as it was typed, up to the interpreter's own flags; the values of secret flags are hidden."""
    program = "".join(arguments[:1])  # an interpreter inside another program has none
    shown = program.split() if program.startswith(_COMMAND) else ["python", *arguments[:1]]
    hides_next = False
    for argument in arguments[1:]:
        found = _SECRET_FLAG.fullmatch(argument)
        if hides_next and not argument.startswith("--"):
            shown.append(HIDDEN)
        elif found and found.group(2) is not None:
            shown.append(f"{found.group(1)}={HIDDEN}")
        else:
            shown.append(argument)
        hides_next = found is not None and found.group(2) is None
    return shlex.join(shown)


def machine(processes: int) -> str:
    """Accelerators or processor, cores, memory, system and processes, in one line."""
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    devices = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parts = [
        *devices,
        f"{_processor()}, {counted(cores, 'core')}, {counted(torch.get_num_threads(), 'thread')}",
        *_memory(),
        platform.system(),
        *([f"{processes} processes"] if processes > 1 else []),
    ]
    return "; ".join(parts)


def _processor() -> str:
    described = Path("/proc/cpuinfo")  # where Linux knows more than `platform`
    if described.is_file() and (found := re.search(r"model name\s*:\s*(.+)", described.read_text())):
        return found.group(1)
    return platform.processor() or platform.machine()


def _memory() -> list[str]:
    try:
        return [f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"]
    except (AttributeError, ValueError):  # not on Windows
        return []


@cache
def versions() -> dict[str, str]:
    """Of Python and of the libraries that are installed and matter."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def parameter_counts(model: nn.Module) -> tuple[int, int]:
    """The parameters of a model, sharded ones whole, and those of them that are trained."""
    sizes = [(getattr(p, "ds_numel", p.numel()), p.requires_grad) for p in model.parameters()]
    return sum(size for size, _ in sizes), sum(size for size, trains in sizes if trains)


def _held_out_prompts(prompts: Any) -> int | None:
    return None if prompts is None or isinstance(prompts, dict) else len(prompts)
