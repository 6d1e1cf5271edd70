# SPDX-License-Identifier: Apache-2.0
"""What the process needs around a run: variables that libraries read at their first use, and a quiet end.

Imports nothing but the standard library, so that every import of the package can afford it.

A variable that is set already keeps its value. torch reads its own when it makes its first tensor, which importing
transformers' Trainer or peft does. If those are imported first, the package trains the same, about a tenth slower on a
CPU. DeepSpeed reads its own when it is imported. What to tell it depends on torch, so it is asked then and not before.

The end of one of several processes waits for the threads of gloo. Such a thread gives back the tensors of an exchange
after the exchange is over, and takes Python's lock for that. Python before 3.14 ends threads that ask for the lock
once it shuts down, inside C++ code that cannot be ended that way: the process aborts ("terminate called without an
active exception") after a run that did everything right. Destroying the process groups does not wait for these
threads, since DDP and DeepSpeed hold on to them. What is registered first with `atexit` is done last: after the
libraries, which are imported later.
"""

import atexit
import os
import time

from .import_hooks import before_import

DEFAULTS = {
    # Huge pages for large tensors. Without them a training step on a CPU spends a tenth of its time on page faults.
    "THP_MEM_ALLOC_ENABLE": "1",
    # oneDNN and torch each keep a compiled kernel for every shape that they have met, 1024 of them unless told
    # otherwise: with batches of ever other lengths that grows to hundreds of MiB.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256",
    "LRU_CACHE_CAPACITY": "256",
}

for _name, _value in DEFAULTS.items():
    os.environ.setdefault(_name, _value)


def tell_deepspeed_of_the_cpu() -> None:
    """Names the accelerator if it is the CPU. DeepSpeed finds it by itself, but not without a warning in every run."""
    import torch

    if torch.accelerator.current_accelerator() is None:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")


before_import("deepspeed", tell_deepspeed_of_the_cpu)


def only_cpu() -> bool:
    """Whether there is nothing to train on but the CPU."""
    import torch
    from transformers.utils import is_torch_xla_available  # not at import: it makes torch's first tensor

    return not (torch.accelerator.is_available() or is_torch_xla_available())


class Terminated(SystemExit):
    """SIGTERM has ended the run: an exit that nothing inside the run may take for its own."""


SECONDS = 0.5  # they need microseconds, once they have the lock and a core


def let_gloo_finish() -> None:
    """Gives the threads of gloo the lock, if there is any other process to exchange with."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        time.sleep(SECONDS)


atexit.register(let_gloo_finish)
