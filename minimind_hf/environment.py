# SPDX-License-Identifier: Apache-2.0
"""What torch, oneDNN and DeepSpeed read from the environment at their first use; a value that is set already stays.

torch reads its own when it makes its first tensor, which importing transformers' Trainer or peft does. Imported after
those, the package trains the same, some tenth slower on a CPU.
"""

import os

import torch

DEFAULTS = {
    # Huge pages for large tensors. Without them a training step on a CPU spends a tenth of its time on page faults.
    "THP_MEM_ALLOC_ENABLE": "1",
    # oneDNN and torch each keep a compiled kernel for every shape that they have met, 1024 of them unless told
    # otherwise: with batches of ever other lengths that grows to hundreds of MiB.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256",
    "LRU_CACHE_CAPACITY": "256",
}

if torch.accelerator.current_accelerator() is None:
    DEFAULTS["DS_ACCELERATOR"] = "cpu"  # what DeepSpeed finds by itself, but not without a warning in every run

for _name, _value in DEFAULTS.items():
    os.environ.setdefault(_name, _value)


def only_cpu() -> bool:
    """Whether there is nothing to train on but the CPU."""
    from transformers.utils import is_torch_xla_available  # not at import: it makes torch's first tensor

    return not (torch.accelerator.is_available() or is_torch_xla_available())
