# SPDX-License-Identifier: Apache-2.0
"""The trainings that test_modes.py runs in one process and in two, on the same completions."""

from pathlib import Path

from peft import LoraConfig
from tiny import ScriptedEngine, make_policy, make_prompts, make_tokenizer, share_of_a

from minimind_hf import GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer
from minimind_hf.forward import scoring_head

SETTINGS = {
    "use_cpu": True,
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
    "max_steps": 3,
    "optim": "sgd",
    "learning_rate": 0.1,
    "lr_scheduler_type": "constant",
    "max_grad_norm": 0.05,
    "max_completion_length": 8,
}
GRPO = {"num_generations": 4, "beta": 0.3}
PPO = {"critic_learning_rate": 0.05, "kl_coef": 0.3, "early_stop_kl": None, "ppo_update_iters": 2}
ADAM = {
    "optim": "adamw_torch",
    "weight_decay": 0.1,
    "learning_rate": 2e-3,
    "critic_learning_rate": 5e-3,
    "lr_scheduler_type": "cosine_with_min_lr",
    "early_stop_kl": 1e-4,
    "ppo_update_iters": 3,
    "max_steps": 7,
    "save_strategy": "steps",
    "save_steps": 2,
}
RUNS = {
    "grpo": (GRPOTrainer, GRPOConfig, GRPO, False),
    "grpo_lora": (GRPOTrainer, GRPOConfig, GRPO, True),
    "grpo_parts": (GRPOTrainer, GRPOConfig, {**GRPO, "max_tokens_per_microbatch": 24}, False),
    "ppo": (PPOTrainer, PPOConfig, PPO, False),
    "ppo_lora": (PPOTrainer, PPOConfig, PPO, True),
    "ppo_adam": (PPOTrainer, PPOConfig, {**PPO, **ADAM}, False),
}
EXACT = ("grpo", "grpo_lora", "grpo_parts", "ppo", "ppo_lora")  # plain SGD: the same parameters however it is run
RESUMED = {"ppo_adam": "checkpoint-4"}  # runs that are resumed from a checkpoint


def build(name: str, folder: Path, processes: int):
    """Returns the trainer of a run; its steps are of 16 completions over all processes, in two accumulated halves."""
    scoring_head.LOGITS_PER_CHUNK = 259 * 16  # so that heads are recomputed in the backward pass here too
    trainer_class, config_class, own, lora = RUNS[name]
    size = 8 // processes
    batch = {"per_device_train_batch_size": size, "gradient_accumulation_steps": 2}
    if trainer_class is PPOTrainer:
        batch["mini_batch_size"] = size
    config = config_class(output_dir=str(folder), **SETTINGS | batch | own)
    adapters = LoraConfig(r=4, lora_alpha=16, target_modules="all-linear") if lora else None
    return trainer_class(
        make_policy(),
        share_of_a,
        config,
        train_dataset=make_prompts(48),
        processing_class=make_tokenizer(),
        peft_config=adapters,
        rollout_engine=ScriptedEngine(config.temperature),
    )


def run(name: str, folder: Path, processes: int, checkpoint: Path | None = None):
    """Trains, saves and returns the trainer."""
    trainer = build(name, folder, processes)
    trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
    trainer.save_model()
    return trainer
