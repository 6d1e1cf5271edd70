# SPDX-License-Identifier: Apache-2.0
"""Trains the tiny model for 200 steps and prints what the process held after 20 and after 200; see test_memory.py."""

import ctypes
import gc
import json
import sys
from pathlib import Path

from tiny import make_policy, make_prompts, make_tokenizer, share_of_a
from transformers import TrainerCallback

from minimind_hf import GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer

SETTINGS = {
    "use_cpu": True,
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
    "max_steps": 200,
    "max_completion_length": 8,
    "per_device_train_batch_size": 8,
    "learning_rate": 1e-5,
}


class Meter(TrainerCallback):
    def __init__(self):
        self.held = {}

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step in (20, 200):
            gc.collect()
            ctypes.CDLL("libc.so.6").malloc_trim(0)  # what was freed is not held
            status = Path("/proc/self/status").read_text().splitlines()
            line = next(line for line in status if line.startswith("VmRSS"))
            self.held[state.global_step] = int(line.split()[1])


def main(algorithm: str, folder: Path) -> None:
    classes = {"grpo": (GRPOTrainer, GRPOConfig), "ppo": (PPOTrainer, PPOConfig)}
    trainer_class, config_class = classes[algorithm]
    own = {"num_generations": 4} if algorithm == "grpo" else {"mini_batch_size": 4}
    meter = Meter()
    trainer_class(
        make_policy(),
        share_of_a,
        config_class(output_dir=str(folder), **SETTINGS | own),
        train_dataset=make_prompts(64),
        processing_class=make_tokenizer(),
        callbacks=[meter],
    ).train()
    print(json.dumps(meter.held), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
