# SPDX-License-Identifier: Apache-2.0
"""What test_distill_distributed.py runs in two processes, and in its own."""

import os
from pathlib import Path

import torch
from peft import LoraConfig
from ppo_tools import copied
from tiny import QUIET, SGD, make_policy, make_prompts, tiny_trainer

from minimind_hf import DistillConfig
from minimind_hf.forward import scoring_head

RANK = int(os.environ.get("RANK", "0"))
SETTINGS = {
    **QUIET,
    **SGD,
    "max_completion_length": 8,
    "max_grad_norm": 0.05,
    "num_generations": 2,
    "gradient_accumulation_steps": 2,
    "eval_strategy": "steps",
    "eval_steps": 3,
    "max_steps": 3,
    "per_device_eval_batch_size": 4,
}
RUNS = {
    "reverse": {"beta": 1.0},
    "jsd": {"beta": 0.5, "loss_temperature": 1.5, "max_tokens_per_microbatch": 32},
    "sequence": {"beta": 0.0, "loss_aggregation": "sequence"},
    "lora": {"beta": 1.0},
}


def train(name: str, folder: Path) -> dict:
    world = int(os.environ.get("WORLD_SIZE", "1"))
    scoring_head.LOGITS_PER_CHUNK = 259 * 16  # so that heads are recomputed in the backward pass here too
    config = DistillConfig(output_dir=str(folder), per_device_train_batch_size=8 // world, **SETTINGS | RUNS[name])
    trainer = tiny_trainer(
        config,
        make_policy().double(),
        None,
        prompts=24,
        teacher_model=make_policy(seed=1, hidden_size=48).double(),
        eval_dataset=make_prompts(5),
        peft_config=LoraConfig(r=4, target_modules="all-linear") if name == "lora" else None,
    )
    trainer.train()
    return {"state": copied(trainer.model), "log": trainer.state.log_history}


def uneven(folder: Path) -> dict:
    config = DistillConfig(
        output_dir=str(folder), lmbda=0.5, per_device_train_batch_size=2, num_generations=1, max_steps=8,
        **{**QUIET, **SGD, "max_completion_length": 8},
    )  # fmt: skip
    rows = [{**row, "completion": f" {row['number']}!"} for row in make_prompts(24)]
    trainer = tiny_trainer(config, make_policy(), None, rows, None, teacher_model=make_policy(seed=1))
    seen = []
    record = trainer.record
    trainer.record = lambda experience: (seen.append(experience.off_policy), record(experience))
    trainer.train()
    return {"state": copied(trainer.model), "off_policy": seen}


def main(folder: Path, what: str = "all") -> None:
    if what == "uneven":
        torch.save(uneven(folder / "uneven"), folder / f"uneven_{RANK}.pt")
        return
    results = {name: train(name, folder / name) for name in RUNS}
    torch.save(results, folder / f"results_{RANK}.pt")
