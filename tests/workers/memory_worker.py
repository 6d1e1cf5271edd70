# SPDX-License-Identifier: Apache-2.0
"""Trains the tiny model for 260 steps and prints what the process held after 60 and after 260; see test_memory.py."""

import ctypes
import gc
import json
import sys
from pathlib import Path

from tiny import QUIET, SIZES, tiny_trainer
from transformers import TrainerCallback

from minimind_hf import GRPOConfig, PPOConfig

SETTINGS = {**QUIET, **SIZES, "max_steps": 260, "learning_rate": 1e-5}


class Meter(TrainerCallback):
    def __init__(self):
        self.held = {}

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step in (60, 260):
            gc.collect()
            ctypes.CDLL("libc.so.6").malloc_trim(0)  # what was freed is not held
            status = Path("/proc/self/status").read_text().splitlines()
            line = next(line for line in status if line.startswith("VmRSS"))
            self.held[state.global_step] = int(line.split()[1])


def main(algorithm: str, folder: Path) -> None:
    config_class, own = {"grpo": (GRPOConfig, {"num_generations": 4}), "ppo": (PPOConfig, {"mini_batch_size": 4})}[
        algorithm
    ]
    meter = Meter()
    config = config_class(output_dir=str(folder), **SETTINGS | own)
    tiny_trainer(config, prompts=64, engine=None, callbacks=[meter]).train()
    print(json.dumps(meter.held), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
