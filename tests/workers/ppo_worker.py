# SPDX-License-Identifier: Apache-2.0
"""What test_ppo_distributed.py runs in two processes, and the first scenario in its own."""

import copy
import os
from pathlib import Path

import torch
from ppo_tools import copied, make_trainer
from tiny import QUIET, ScriptedEngine, make_policy, make_prompts, share_of_a, tiny_trainer
from transformers import TrainerCallback

from minimind_hf import GRPOConfig
from minimind_hf.rewards import RewardScorer

RANK = int(os.environ.get("RANK", "0"))


class FarAwayEngine(ScriptedEngine):
    """Completions of equal length; in the second rollout, the second process claims to have sampled far away.

    The KL of its tokens is then `0.5 * distance^2`, that of the first process 0.
    """

    def __init__(self, temperature, distance):
        super().__init__(temperature)
        self.distance, self.calls = distance, 0

    def generate(self, prompt_ids, num_generations, sampling):
        self.calls += 1
        rollouts = super().generate(prompt_ids, num_generations, sampling)
        if self.calls == 2 and RANK == 1:
            for rollout in rollouts:
                rollout.logprobs = [logp - self.distance for logp in rollout.logprobs]
        return rollouts

    def _written(self, prompt, number):
        return super()._written(prompt, number)[:1]


class Recorder(TrainerCallback):
    def __init__(self, trainer):
        self.trainer, self.states, self.optimizers, self.passes = trainer, [], [], []
        self.count = 0
        trainer.model.register_forward_pre_hook(self.on_forward)

    def on_forward(self, module, args):
        self.count += torch.is_grad_enabled()

    def on_step_end(self, args, state, control, **kwargs):
        self.states.append(copied(self.trainer.model))
        self.optimizers.append(copy.deepcopy(self.trainer.optimizer.state_dict()["state"]))
        self.passes.append(self.count)


def two_steps(folder: Path) -> dict:
    world = int(os.environ.get("WORLD_SIZE", "1"))
    size = 8 // world
    # The widths of a padded batch differ between one process and two, so the sums do too: float64 keeps that small.
    model = make_policy().double()
    trainer = make_trainer(
        folder,
        model,
        per_device_train_batch_size=size,
        mini_batch_size=size,
        max_steps=4,
        max_grad_norm=0.05,
        kl_coef=0.3,
        early_stop_kl=None,
    )
    trainer.train()
    config = GRPOConfig(output_dir=str(folder / "grpo"), **QUIET, num_generations=2, max_completion_length=8)
    grpo = tiny_trainer(config, prompts=None)
    return {"state": copied(trainer.model), "log": trainer.state.log_history} | {
        f"{name}_{count}": evaluated(each, count)
        for name, each in (("ppo", trainer), ("grpo", grpo))
        for count in (1, 5)
    }


def evaluated(trainer, count: int) -> dict[str, float]:
    """What is measured on so many prompts, and how often this process scored each."""
    scored = [0.0] * count

    def reward(completion_ids, number, **kwargs):
        for each in number:
            scored[each] += 1
        return share_of_a(completion_ids)

    trainer.scorer = RewardScorer(reward)
    trainer.args.per_device_eval_batch_size = 4
    metrics = trainer.evaluate(make_prompts(count))
    is_time = ("runtime", "second")
    return {
        "metrics": {name: value for name, value in metrics.items() if not any(word in name for word in is_time)},
        "scored": scored,
    }


def early_stop(folder: Path, distance: float) -> dict:
    trainer = make_trainer(
        folder,
        engine=FarAwayEngine(0.8, distance),
        per_device_train_batch_size=4,
        mini_batch_size=2,
        max_steps=12,
        optim="adamw_torch",
        weight_decay=0.1,
        learning_rate=1e-5,
        critic_learning_rate=1e-5,
        early_stop_kl=0.1,
    )
    recorder = Recorder(trainer)
    trainer.add_callback(recorder)
    trainer.train()
    return {
        "states": recorder.states,
        "optimizers": recorder.optimizers,
        "passes": recorder.passes,
        "log": trainer.state.log_history,
    }


def main(folder: Path) -> None:
    results = {"two_steps": two_steps(folder / "two_steps")}
    for distance in (0.6, 0.7):
        results[distance] = early_stop(folder / f"early_stop_{distance}", distance)
    torch.save(results, folder / f"results_{RANK}.pt")
