# SPDX-License-Identifier: Apache-2.0
"""What test_agents_distributed.py runs in two processes, and the first scenarios in its own."""

import os
import time
from collections import Counter as Counts
from pathlib import Path

import torch
from agent_runs import Counter, Game, SometimesRewarding, agent_policy, agent_trainer, make_rows
from ppo_tools import copied
from tiny import share_of_a

from minimind_hf import GRPOConfig, PPOConfig

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
SHAPE = {"learning_rate": 0.05, "max_grad_norm": 0.1, "max_steps": 2, "per_device_eval_batch_size": 4}
EQUAL = {
    "tools": (GRPOConfig, Counter, {"beta": 0.1}),
    "turns_in_one": (GRPOConfig, SometimesRewarding, {}),
    "discounted": (GRPOConfig, Game, {"turn_discount": 0.9}),
    "ppo": (PPOConfig, SometimesRewarding, {"kl_coef": 0.1, "early_stop_kl": None, "ppo_update_iters": 2}),
}


def build(folder: Path, config_class, environment, changes: dict, engine="scripted", rewards=share_of_a):
    size = 8 // WORLD
    batch = {"per_device_train_batch_size": size}
    if config_class is PPOConfig:
        batch["mini_batch_size"] = size
    # Padded batches of one process and of two differ in width, so sums do too: float64 keeps that small.
    model = agent_policy(ends=None).double() if engine == "scripted" else agent_policy()
    return agent_trainer(
        folder,
        config_class,
        model,
        rewards,
        make_rows(8),
        engine=engine,
        environment_factory=environment,
        **SHAPE | batch | changes,
    )


def equal(folder: Path, name: str) -> dict:
    trainer = build(folder / name, *EQUAL[name])
    gave, counted, score = [], [], trainer.score

    def scored(experience):
        score(experience)
        gave.append(any(episode.turn_rewards is not None for episode in experience.counted.episodes))
        counted.append(experience.turn_rewards is not None)

    trainer.score = scored
    trainer.train()
    trainer.score = score
    found = {"state": copied(trainer.model), "log": trainer.state.log_history, "gave": gave, "counted": counted}
    return found | {f"eval_{count}": evaluated(trainer, count) for count in (1, 5)}


def evaluated(trainer, count: int) -> dict:
    """What is measured on so many prompts, and how often this process began an episode of each."""
    began = Counts()
    original = trainer.agent._begin

    def begin(example, *others):
        began[example["columns"]["number"]] += 1
        return original(example, *others)

    trainer.agent._begin = begin
    metrics = trainer.evaluate(make_rows(count))
    trainer.agent._begin = original
    timed = ("runtime", "second")
    metrics = {name: value for name, value in metrics.items() if not any(word in name for word in timed)}
    return {"metrics": metrics, "began": [began[number] for number in range(count)]}


def differs_in_odd_rows(completion_ids, number, **_):
    return [share * (row % 2) for share, row in zip(share_of_a(completion_ids), number, strict=True)]


def drawn_again(folder: Path) -> dict:
    """Groups of one process teach nothing, so it draws others; a pass may be of no prompt in the other process."""
    changes = {"dynamic_sampling": True, "max_resampled": 3}
    trainer = build(folder / "drawn", GRPOConfig, SometimesRewarding, changes, rewards=differs_in_odd_rows)
    passes, score = [], trainer.score
    trainer.score = lambda experience: (passes.append(len(experience.prompts)), score(experience))
    trainer.train()
    return {"state": copied(trainer.model), "passes": passes, "log": trainer.state.log_history}


# What goes wrong in one process, at its second rollout


class Broken(Game):
    fails = False

    def reset(self, **row):
        super().reset(**row)
        if self.fails and RANK == 1:
            raise OSError("the disk is full")


class Silent(Game):
    fails = False

    def respond(self, turn):
        if self.fails and RANK == 1:
            raise LookupError("no word fits")
        return super().respond(turn)


class Hanging(Game):
    fails = False

    def respond(self, turn):
        if self.fails and RANK == 1:
            time.sleep(60)
        return super().respond(turn)


class Unjust(Counter):
    fails = False

    def get_reward(self):
        if self.fails and RANK == 1:
            raise ZeroDivisionError("nothing to share")
        return 1.0


class Short(Game):
    """In the second process all episodes end after a turn; in the first one they are slow, too."""

    fails = False

    def respond(self, turn):
        if RANK == 0:
            time.sleep(0.1)
        reply = super().respond(turn)
        reply.done = reply.done or RANK == 1
        return reply


FAULTS = {kind.__name__: kind for kind in (Broken, Silent, Hanging, Unjust, Short)}


def faulty(folder: Path, name: str) -> dict:
    kind, start = FAULTS[name], time.monotonic()
    trainer = build(folder / name, GRPOConfig, kind, {"tool_timeout": 2.0}, engine=None, rewards=None)
    collect = trainer.collect

    def second(numbers):
        kind.fails = trainer.rollouts_made == 1
        return collect(numbers)

    trainer.collect = second
    try:
        trainer.train()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "seconds": time.monotonic() - start}
    return {"error": None, "steps": trainer.state.global_step, "log": trainer.state.log_history}


def main(folder: Path) -> None:
    results = {name: equal(folder, name) for name in EQUAL}
    results["drawn"] = drawn_again(folder)
    results |= {name: faulty(folder, name) for name in FAULTS}
    torch.save(results, folder / f"results_{RANK}.pt")
