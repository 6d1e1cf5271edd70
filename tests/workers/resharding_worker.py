# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed runs that stop in one number of processes and go on in another; started by test_resharding.py.

    python resharding_worker.py FOLDER

Each case trains four steps in two processes and in one, saves after two, and goes on from there in the other number.
"""

import os
import sys
from functools import partial
from pathlib import Path

from accelerate.state import AcceleratorState
from launching import fork, free_port, wait
from mode_runs import GRPO, PPO, SETTINGS
from peft import LoraConfig
from tiny import make_llama, make_policy, skip_deepspeed_shared_memory, tiny_trainer

from minimind_hf import GRPOConfig, PPOConfig

ADAM = {
    "optim": "adamw_torch",
    "weight_decay": 0.3,
    "learning_rate": 2e-3,
    "lr_scheduler_type": "cosine_with_min_lr",
    "max_steps": 4,
    "save_strategy": "steps",
    "save_steps": 2,
    "gradient_accumulation_steps": 2,
}
RUNS = {
    "grpo": (GRPOConfig, GRPO, make_policy, False),
    "grpo_lora": (GRPOConfig, GRPO, make_policy, True),
    "ppo": (PPOConfig, {**PPO, "critic_learning_rate": 5e-3}, make_policy, False),
    # The bias of Llama's critic is a group of parameters of one element, of which one process holds only padding
    "ppo_lora": (PPOConfig, {**PPO, "critic_learning_rate": 5e-3}, make_llama, True),
    "sgd": (GRPOConfig, {**GRPO, "optim": "sgd", "save_steps": 1, "max_steps": 2}, make_policy, False),
}
CASES = [(1, "ppo_lora"), (2, "grpo_lora"), (2, "ppo"), (3, "grpo"), (3, "ppo_lora"), (2, "sgd")]


def train(folder: Path, stage: int, name: str, processes: int, resumed: bool) -> None:
    config_class, own, make_model, lora = RUNS[name]
    size = 8 // processes
    settings = SETTINGS | ADAM | own | {"per_device_train_batch_size": size}
    if config_class is PPOConfig:
        settings["mini_batch_size"] = size
    kind = "resumed" if resumed else "straight"
    config = config_class(output_dir=str(folder / f"{kind}_{stage}_{name}_{processes}"), **settings)
    adapters = LoraConfig(r=4, lora_alpha=16, target_modules="all-linear") if lora else None
    trainer = tiny_trainer(config, make_model(), prompts=48, peft_config=adapters)
    checkpoint = folder / f"straight_{stage}_{name}_{3 - processes}" / f"checkpoint-{config.save_steps}"
    trainer.train(resume_from_checkpoint=str(checkpoint) if resumed else None)
    if trainer.accelerator.state.deepspeed_plugin.zero_stage != stage or config.world_size != processes:
        raise RuntimeError(f"{name} did not run under ZeRO-{stage} in {processes} processes")
    trainer.save_model()
    if resumed and not lora:
        trainer.state.best_model_checkpoint = str(checkpoint)
        trainer._load_best_model()
        trainer.save_model(f"{config.output_dir}/best")


def train_all(folder: Path, processes: int, resumed: bool, cases: list, rank: int) -> None:
    if processes == 1:
        alone = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        os.environ |= alone | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    skip_deepspeed_shared_memory()
    for stage, name in cases:
        AcceleratorState._reset_state()
        os.environ["ACCELERATE_DEEPSPEED_ZERO_STAGE"] = str(stage)
        try:
            train(folder, stage, name, processes, resumed)
        except (ValueError, RuntimeError) as error:
            if name != "sgd" or not resumed:
                raise
            (folder / f"sgd_{processes}_{rank}.txt").write_text(f"{type(error).__name__}: {error}")


def main(folder: Path, cases: list) -> None:
    os.environ |= {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "true"}
    for resumed in (False, True):
        for processes in (2, 1):
            errors = folder / f"errors_{processes}_{resumed}"
            errors.mkdir()
            work = partial(train_all, folder, processes, resumed, cases)
            statuses = wait(fork(work, processes, errors=errors), timeout=300)
            if any(statuses.values()):
                raise RuntimeError("\n".join(path.read_text()[-3000:] for path in sorted(errors.iterdir())))


if __name__ == "__main__":
    main(Path(sys.argv[1]), CASES)
