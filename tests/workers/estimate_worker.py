# SPDX-License-Identifier: Apache-2.0
"""Trains two steps and prints the peak of its resident memory above that of its imports, in MiB; see test_estimate.py.

    python estimate_worker.py FOLDER SETTINGS

SETTINGS: a JSON object of config fields, with `algorithm` and, for adapters, `lora_r`.
"""

import json
import sys
from pathlib import Path

from peft import LoraConfig
from tiny import QUIET, tiny_trainer

from minimind_hf import GRPOConfig, MiniMindConfig, MiniMindForCausalLM, PPOConfig

MODEL = {"vocab_size": 6400, "hidden_size": 512, "num_hidden_layers": 8}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2}
PROMPT, COMPLETION = 12, 96


def memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def main(folder: str, settings: dict) -> None:
    rank = settings.pop("lora_r", None)
    config_class = {"grpo": GRPOConfig, "ppo": PPOConfig}[settings.pop("algorithm")]
    config = config_class(
        output_dir=folder,
        **QUIET,
        max_steps=2,
        max_completion_length=COMPLETION,
        **settings,
    )
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = memory("VmRSS")
    trainer = tiny_trainer(
        config,
        MiniMindForCausalLM(MiniMindConfig(**MODEL, **HEADS)),
        prompts=[{"prompt": chr(97 + number) * PROMPT} for number in range(16)],
        engine=None,
        peft_config=rank and LoraConfig(r=rank, target_modules="all-linear"),
    )
    trainer.train()
    print(json.dumps((memory("VmHWM") - before) / 1024), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
