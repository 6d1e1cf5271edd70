# SPDX-License-Identifier: Apache-2.0
"""Prepares the process: environment variables that libraries read at first use, and a clean exit.

This module imports only the standard library, so that every import of the package can afford it.

Variables that are already set keep their values. torch reads its variables when it creates its first tensor, which
happens when transformers' Trainer or peft is imported. If these are imported first, the package works the same, but
about a tenth slower on a CPU. DeepSpeed reads its variable when it is imported. Its value depends on torch, so it is
set at that time and not earlier.

With several processes, the exit waits for the threads of gloo. Such a thread releases the tensors of an exchange after
the exchange, and needs the GIL for that. During shutdown, Python before 3.14 ends threads that request the GIL, inside
C++ code that does not allow it: the process aborts ("terminate called without an active exception") after a successful
run. Destroying the process groups does not wait for these threads, since DDP and DeepSpeed hold references to the
groups. Functions registered first with `atexit` run last, so this one runs after those of libraries imported later.
"""

import atexit
import logging
import os
import time

from .import_hooks import before_import

DEFAULTS = {
    # Huge pages for large tensors. Without them a training step on a CPU spends a tenth of its time on page faults.
    "THP_MEM_ALLOC_ENABLE": "1",
    # oneDNN and torch each cache a compiled kernel for every shape, by default up to 1024. With batches whose lengths
    # keep changing, this grows to hundreds of MiB.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256",
    "LRU_CACHE_CAPACITY": "256",
}

for _name, _value in DEFAULTS.items():
    os.environ.setdefault(_name, _value)


# peft imports bitsandbytes, which says in every command, on CPUs with bfloat16, that a kernel for 4 bits is missing.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


def tell_deepspeed_of_the_cpu() -> None:
    """Sets the accelerator if it is the CPU. DeepSpeed would detect it, but with a warning in every run."""
    import torch

    if torch.accelerator.current_accelerator() is None:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")


before_import("deepspeed", tell_deepspeed_of_the_cpu)


def only_cpu() -> bool:
    """Whether the CPU is the only device to train on."""
    import torch
    from transformers.utils import is_torch_xla_available  # not at module level: this creates torch's first tensor

    return not (torch.accelerator.is_available() or is_torch_xla_available())


class Terminated(SystemExit):
    """SIGTERM has ended the run: an exit that nothing inside the run may take for its own."""


SECONDS = 0.5  # the threads need microseconds, once they have the GIL and a core


def let_gloo_finish() -> None:
    """Releases the GIL for the threads of gloo, if there are several processes."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        time.sleep(SECONDS)


atexit.register(let_gloo_finish)
