# SPDX-License-Identifier: Apache-2.0
"""The trainings that test_modes.py runs in one process and in two, on the same completions."""

import math
import os
from pathlib import Path

import torch
from agent_runs import EPISODES, Counter, Game, SometimesRewarding, agent_policy, agent_trainer, make_rows
from peft import LoraConfig, get_peft_model
from tiny import QUIET, SGD, SIZES, ScriptedEngine, make_policy, make_prompts, share_of_a, tiny_trainer
from transformers import TrainerCallback

from minimind_hf import DistillConfig, GRPOConfig, PPOConfig
from minimind_hf.forward import scoring_head
from minimind_hf.trainer.models.weights import NotFiniteError

SETTINGS = {**QUIET, **SIZES, **SGD, "max_steps": 3, "learning_rate": 0.1, "max_grad_norm": 0.05}
EVALUATED = {"eval_on_start": True, "eval_strategy": "steps", "eval_steps": 3, "per_device_eval_batch_size": 4}
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
FOLLOWED = {
    "sync_ref_model": True,
    "ref_model_sync_steps": 1,
    "lr_scheduler_type": "linear",
    "save_strategy": "steps",
    "save_steps": 2,
}
MOE = {"use_moe": True, "num_experts_per_tok": 2}  # of two experts both weights depend on the router
BF16 = {**EVALUATED, "bf16": True, "max_steps": 2, "gradient_checkpointing": True, "eval_steps": 1}
DISTILL = {"num_generations": 2, "max_tokens_per_microbatch": 48, "loss_temperature": 1.0}
RUNS = {
    "grpo": (GRPOConfig, {**GRPO, **EVALUATED}, False),
    "grpo_lora": (GRPOConfig, {**GRPO, "merge_adapters": True}, True),
    "grpo_adapter": (GRPOConfig, GRPO, False),
    "grpo_parts": (GRPOConfig, {**GRPO, "max_tokens_per_microbatch": 24}, False),
    "grpo_sync": (GRPOConfig, {**GRPO, **FOLLOWED}, False),
    "ppo": (PPOConfig, {**PPO, **EVALUATED}, False),
    "ppo_lora": (PPOConfig, PPO, True),
    "ppo_adam": (PPOConfig, {**PPO, **ADAM}, False),
    "moe": (GRPOConfig, {**GRPO, "router_aux_loss_coef": 0.0}, False),
    "grpo_agent": (GRPOConfig, {**GRPO, **EVALUATED}, False),
    "grpo_agent_parts": (GRPOConfig, {**GRPO, "max_tokens_per_microbatch": 300}, True),
    "ppo_agent": (PPOConfig, PPO, False),
    "distill": (DistillConfig, {**DISTILL, **EVALUATED}, False),
    "distill_adapter": (DistillConfig, {**DISTILL, "beta": 0.5}, True),
    "bf16": (GRPOConfig, {**GRPO, **BF16}, False),
    "bf16_ppo": (PPOConfig, {**PPO, **BF16}, False),
}
AGENTS = {"grpo_agent": Counter, "grpo_agent_parts": SometimesRewarding, "ppo_agent": Game}  # environments of runs
# What must stop before its second update: a loss that is NaN in one process, or gradients of a loss that is none
BROKEN = {
    "nan_loss": (GRPOConfig, GRPO, False),
    "nan_gradient": (GRPOConfig, GRPO, False),
    "nan_gradient_bf16": (GRPOConfig, {**GRPO, "bf16": True}, False),
    "nan_gradient_ppo": (PPOConfig, PPO, False),
}
EXACT = (
    "grpo",
    "grpo_lora",
    "grpo_adapter",
    "grpo_parts",
    "grpo_sync",
    "ppo",
    "ppo_lora",
    "moe",
    "grpo_agent",
    "grpo_agent_parts",
    "ppo_agent",
    "distill",
    "distill_adapter",
)  # plain SGD: the same parameters however it is run
RESUMED = {"ppo_adam": "checkpoint-4", "grpo_sync": "checkpoint-2"}  # runs that are resumed from a checkpoint


# What runs start from that are given a folder, by which ZeRO-3 never has the whole model; others a model in memory
STARTS = {"grpo_lora": "model", "ppo": "model", "grpo_adapter": "adapter", "distill_adapter": "model"}
TEACHERS = {"distill": "teacher", "distill_adapter": "adapter"}  # another model, or an adapter on the student's base


def make_starts(folder: Path) -> None:
    """Makes the folders of STARTS beside those of the runs."""
    policy = make_policy()
    policy.save_pretrained(folder / "model")
    make_policy(seed=5, num_hidden_layers=1, hidden_size=64).save_pretrained(folder / "teacher")
    policy.name_or_path = str(folder / "model")
    adapted = get_peft_model(policy, LoraConfig(r=4, lora_alpha=16, target_modules="all-linear"))
    generator = torch.Generator().manual_seed(1)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(std=0.05, generator=generator)
    adapted.save_pretrained(folder / "adapter")


def build(name: str, folder: Path, processes: int, **changes):
    """Returns the trainer of a run; its steps are of 16 completions over all processes, in two accumulated halves."""
    scoring_head.LOGITS_PER_CHUNK = 259 * 16  # so that heads are recomputed in the backward pass here too
    config_class, own, lora = (RUNS | BROKEN)[name]
    size = 8 // processes
    batch = {"per_device_train_batch_size": size, "gradient_accumulation_steps": 2}
    if name in AGENTS:
        batch |= EPISODES
    if config_class is PPOConfig:
        batch["mini_batch_size"] = size
    config = config_class(output_dir=str(folder), **SETTINGS | batch | own | changes)
    adapters = LoraConfig(r=4, lora_alpha=16, target_modules="all-linear") if lora else None
    if name in AGENTS:
        held_out = make_rows(5) if config.eval_strategy != "no" else None
        return agent_trainer(
            folder,
            model=agent_policy(ends=None),
            rewards=share_of_a,
            rows=make_rows(24),
            engine="scripted",
            peft_config=adapters,
            args=config,
            environment_factory=AGENTS[name],
            eval_dataset=held_out,
        )
    start = str(folder.parent / STARTS[name]) if name in STARTS else make_policy(**(MOE if name == "moe" else {}))
    held_out = make_prompts(5) if config.eval_strategy != "no" else None  # no whole number of batches
    further = {"teacher_model": str(folder.parent / TEACHERS[name])} if name in TEACHERS else {}
    return tiny_trainer(config, start, prompts=48, eval_dataset=held_out, peft_config=adapters, **further)


def run(name: str, folder: Path, processes: int, checkpoint: Path | None = None, **changes):
    """Trains, saves and returns the trainer."""
    trainer = build(name, folder, processes, **changes)
    trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
    trainer.save_model()
    return trainer


def run_broken(name: str, folder: Path, processes: int) -> tuple[str, bool]:
    """Trains what is to be stopped; returns the error and whether weights changed after the first step."""
    trainer = build(name, folder, processes)
    compute, weights = trainer.loss, []
    is_here = trainer.args.process_index == processes - 1

    def broken(*args):
        loss = compute(*args)
        if trainer.state.global_step == 1 and is_here:
            if name == "nan_loss":
                return loss * math.nan
            loss.register_hook(lambda gradient: gradient * math.nan)
        return loss

    trainer.loss = broken
    trainer.add_callback(_AfterStep(lambda: weights.append(_weights(trainer))))
    try:
        trainer.train()
    except NotFiniteError as error:
        weights.append(_weights(trainer))
        before, after = weights
        return str(error), any(not torch.equal(before[key], after[key]) for key in before)
    return "no error", True


class _FailingEngine(ScriptedEngine):
    def generate(self, *args):
        if os.environ["RANK"] == "1" and self.version == 1:
            raise ConnectionError("the server went away")
        return super().generate(*args)


def run_with_failing_engine(folder: Path) -> str:
    """Trains until the engine of one process fails, before it makes a pass as the other does; returns the error."""
    trainer = build("grpo", folder, processes=2)
    trainer._rollouts.engine = _FailingEngine(trainer.args.temperature)
    try:
        trainer.train()
    except (RuntimeError, ConnectionError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


class _AfterStep(TrainerCallback):
    def __init__(self, do):
        self.do = do

    def on_step_end(self, *args, **kwargs):
        self.do()


def _weights(trainer) -> dict[str, torch.Tensor]:
    """All of them, in the first process."""
    state = trainer.accelerator.get_state_dict(trainer.model_wrapped) or {}
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def forget_precision() -> None:
    """TrainingArguments leave that of one run to the next in the environment."""
    os.environ["ACCELERATE_MIXED_PRECISION"] = "no"
