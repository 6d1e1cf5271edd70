# SPDX-License-Identifier: Apache-2.0
"""What one of several processes runs in test_rollout_servers_distributed.py; started by torchrun, or alone."""

import json
import os
import sys
from pathlib import Path

import torch
from tiny import make_policy, make_prompts, make_tokenizer, share_of_a

from minimind_hf import GRPOConfig, GRPOTrainer

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def failing_reward(completion_ids, trainer_state, **columns):
    if RANK == 1 and trainer_state.global_step == 1:
        raise LookupError("this reward knows no answer")
    return share_of_a(completion_ids)


def make_trainer(folder: Path, reward, **changes) -> GRPOTrainer:
    settings = {
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "max_steps": 3,
        "optim": "sgd",
        "learning_rate": 0.5,
        "lr_scheduler_type": "constant",
        "num_generations": 4,
        "per_device_train_batch_size": 8 // WORLD,
        "max_completion_length": 8,
        "rollout_engine": "sglang",
        "server_timeout": 60,
    }
    # The widths of a padded batch differ between one process and two, so the sums do too: float64 keeps that small.
    return GRPOTrainer(
        make_policy().double(),
        reward,
        GRPOConfig(output_dir=str(folder / "run"), **settings | changes),
        train_dataset=make_prompts(12),
        processing_class=make_tokenizer(),
    )


def main(folder: Path, reward: str, changes: dict) -> None:
    result = {}
    try:
        trainer = make_trainer(folder, {"share_of_a": share_of_a, "failing": failing_reward}[reward], **changes)
        trainer.train()
        result = {"state": trainer.model.state_dict(), "log": trainer.state.log_history}
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}"}
        raise
    finally:
        torch.save(result, folder / f"result_{RANK}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
