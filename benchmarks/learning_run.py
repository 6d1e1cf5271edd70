# SPDX-License-Identifier: Apache-2.0
"""One run of `learning.py` that is not a recipe's: a text task with any algorithm, or trl's GRPOTrainer.

    python benchmarks/learning_run.py TASK ALGORITHM START '{"output_dir": "FOLDER", "seed": 1, ...}'

The supervised start is made if it is not there. The log history is left in the output folder, as the recipes do. trl
gets the settings of our GRPO. The prompts of text tasks and sums are texts for every trainer. The calculator is trl's
with its own tools; it knows rewards of episodes only, so that of the turns is their mean.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from statistics import fmean
from typing import Any

import gym_mixture
import reverse_text
import text_tasks
import trl
from datasets import Dataset
from mixture import as_texts, of_texts
from shared_start import once
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PrinterCallback, Trainer, TrainerCallback
from trl.chat_template_utils import qwen3_template

from minimind_hf import GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer
from minimind_hf.reports.record import STATE_FILE

import agent_tasks, agent_world, embedded_task, grpo  # isort: skip  # noqa: E401 - `mixture` makes them importable

TEXT_TASKS = {"reverse-text": reverse_text.make_task, "reasoning-gym": gym_mixture.make_task}
ROLLOUT = 8  # steps of PPO on one rollout: two passes over four mini-batches
COMMON = {
    "learning_rate": 3e-4,
    "lr_scheduler_type": "constant_with_warmup",
    "adam_beta2": 0.98,
    "per_device_train_batch_size": 128,
    "temperature": text_tasks.TEMPERATURE,
    "report_to": "none",
    "save_strategy": "no",
}
OURS = {
    "cispo": {"loss_type": "cispo", "beta": 0.0},
    "grpo": {"loss_type": "grpo", "beta": 0.0},
    "rloo": {"loss_type": "grpo", "beta": 0.0, "advantage_estimator": "rloo"},
    "ppo": {
        "num_generations": 1,
        "mini_batch_size": 32,
        "ppo_update_iters": 2,
        "learning_rate": 2e-4,
        "critic_learning_rate": 1e-3,
        "kl_coef": 0.0,
    },
}
# The settings of the recipes, as trl has them; those that trl has not are left out.
ONLY_OURS = ("sft_accuracy", "thinking_ratio", "probe_prompts", "probe_steps", "max_turns", "max_turn_length")
OUR_SCHEDULE = {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}}
TRL = {"loss_type": "grpo", "use_bias_correction_kl": False, "gradient_checkpointing": False, "bf16": False}


@dataclass
class Setup:
    """Where to start, and what to train on."""

    start: Path
    tokenizer: PreTrainedTokenizerBase
    train: Dataset
    held_out: Dataset
    rewards: list[Callable]
    settings: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)


class Seconds(TrainerCallback):
    """Adds the seconds of each step to the log, under the name that our trainers give to those of a phase."""

    def on_step_begin(self, args, state, control, **kwargs):
        self.since = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        self.spent = time.perf_counter() - self.since

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            state.log_history[-1]["seconds/step"] = self.spent


def set_up(task: str, start: Path, seed: int) -> Setup:
    """The start, which is made if it is not there, and the data."""
    if task in TEXT_TASKS:
        return of_text_task(TEXT_TASKS[task](), start, seed)
    return of_sums(start, seed) if task == "sums" else of_calculator(start, seed)


def of_text_task(task: text_tasks.TextTask, start: Path, seed: int) -> Setup:
    once(text_tasks.make_start, start, task, start, seed)
    weights = [1.0] + [0.0] * (len(task.rewards) - 1)
    settings = {**COMMON, **task.settings, "reward_weights": weights}
    train, held_out = map(Dataset.from_list, (task.train, task.held_out))
    return Setup(start, AutoTokenizer.from_pretrained(start), train, held_out, task.rewards, settings)


def of_sums(start: Path, seed: int) -> Setup:
    """The task of recipes/grpo.py as texts."""
    once(embedded_task.make_start, start, start, 400, 0.45, seed, "cpu")
    tokenizer = AutoTokenizer.from_pretrained(start)
    train, held_out = (as_texts(embedded_task.as_dataset(sums), tokenizer) for sums in embedded_task.split_sums())
    rewards = list(map(of_texts, embedded_task.REWARDS))
    return Setup(start, tokenizer, train, held_out, rewards, of_recipe(grpo.EMBEDDED_DEFAULTS))


def of_calculator(start: Path, seed: int) -> Setup:
    """The task of recipes/agent.py, with what trl needs to read a call."""
    task = agent_tasks.CalculatorTask()
    defaults = task.defaults["grpo"]
    once(agent_world.make_start, start, task, start, 600, defaults["sft_accuracy"], seed, "cpu")
    tokenizer = AutoTokenizer.from_pretrained(start)
    tokenizer.response_template = qwen3_template
    turns = task.settings["max_turns"] - 1
    settings = {**of_recipe({**defaults, **task.settings}), "max_tool_calling_iterations": turns}
    rewards = [agent_tasks.correct_answer, copied]
    train, held_out = map(Dataset.from_list, (task.train, task.held_out))
    return Setup(start, tokenizer, train, held_out, rewards, settings, {"tools": list(task.tools)})


def of_recipe(settings: dict[str, Any]) -> dict[str, Any]:
    return OUR_SCHEDULE | {name: value for name, value in settings.items() if name not in ONLY_OURS}


@wraps(agent_tasks.copied_by_turn)
def copied(**columns: Any) -> list[float]:
    return [fmean(turns) for turns in agent_tasks.copied_by_turn(**columns)]


def make_trainer(setup: Setup, algorithm: str, given: dict[str, Any]) -> Trainer:
    common = {
        "train_dataset": setup.train,
        "eval_dataset": setup.held_out,
        "processing_class": setup.tokenizer,
        **setup.options,
    }
    settings = setup.settings | given
    if algorithm == "trl":
        del settings["probe_prompts"]
        args = trl.GRPOConfig(**settings | TRL)
        return trl.GRPOTrainer(str(setup.start), setup.rewards, args, callbacks=[Seconds()], **common)
    if algorithm == "ppo":
        lasting = {name: ROLLOUT * settings[name] for name in ("max_steps", "warmup_steps", "eval_steps")}
        args = PPOConfig(**settings | OURS["ppo"] | lasting)
        return PPOTrainer(str(setup.start), setup.rewards, args, **common)
    return GRPOTrainer(str(setup.start), setup.rewards, GRPOConfig(**settings | OURS[algorithm]), **common)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["sums", "calculator", *TEXT_TASKS])
    parser.add_argument("algorithm", choices=[*OURS, "trl"])
    parser.add_argument("start", type=Path, help="folder of the supervised start")
    parser.add_argument("settings", type=json.loads, help="further settings of the trainer")
    args = parser.parse_args()
    folder = Path(args.settings["output_dir"])
    trainer = make_trainer(set_up(args.task, args.start, args.settings["seed"]), args.algorithm, args.settings)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    trainer.state.save_to_json(str(folder / STATE_FILE))


if __name__ == "__main__":
    main()
