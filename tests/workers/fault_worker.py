# SPDX-License-Identifier: Apache-2.0
"""Trainings of two processes in which one fails; started by test_faults.py.

    python fault_worker.py FOLDER

Prints one JSON object: for each fault its seconds, exit statuses and what each process wrote to stderr.
"""

import json
import os
import sys
import time
from functools import partial
from pathlib import Path

import torch
from launching import fork, wait
from tiny import GRPO, ScriptedEngine, share_of_a, tiny_trainer

from minimind_hf import GRPOConfig

SETTINGS = {**GRPO, "max_steps": 3, "learning_rate": 0.1, "max_grad_norm": 1.0}


def raising_reward(completion_ids, trainer_state, **kwargs):
    if os.environ.get("RANK") == "1" and trainer_state.global_step == 1:
        raise KeyError("no answer for this prompt")
    return share_of_a(completion_ids)


class RaisingEngine(ScriptedEngine):
    def generate(self, *args):
        if os.environ.get("RANK") == "1" and self.version == 1:
            raise ConnectionError("the server went away")
        return super().generate(*args)


class EmptyEngine(ScriptedEngine):
    def generate(self, *args):
        rollouts = super().generate(*args)
        if os.environ.get("RANK") == "1" and self.version == 1:
            for rollout in rollouts:
                rollout.completion_ids, rollout.logprobs = [], []
        return rollouts


class MaskedEngine(ScriptedEngine):
    """Nothing of what the second process drew is to be learned from."""

    def generate(self, *args):
        rollouts = super().generate(*args)
        if os.environ.get("RANK") == "1":
            for rollout in rollouts:
                rollout.loss_mask = [0] * len(rollout.completion_ids)
        return rollouts


class DyingEngine(ScriptedEngine):
    def generate(self, *args):
        if os.environ.get("RANK") == "1" and self.version == 1:
            os.kill(os.getpid(), 9)
        return super().generate(*args)


FAULTS = {
    "reward": (ScriptedEngine, raising_reward),
    "engine": (RaisingEngine, share_of_a),
    "empty": (EmptyEngine, share_of_a),
    "masked": (MaskedEngine, share_of_a),
    "killed": (DyingEngine, share_of_a),
    "none": (ScriptedEngine, share_of_a),
}


def train(folder: Path, fault: str, rank: int, per_device: int = 4, **changes):
    engine, reward = FAULTS[fault]
    resume = changes.pop("resume", None)
    batch = {"per_device_train_batch_size": per_device}
    config = GRPOConfig(output_dir=str(folder), **SETTINGS | batch | changes)
    trainer = tiny_trainer(config, reward=reward, prompts=24, engine=engine(config.temperature))
    trainer.train(resume_from_checkpoint=resume)
    if rank == 0:
        torch.save(trainer.model.state_dict(), folder / "finished.pt")
    trainer.end()


def with_fault(folder: Path, fault: str) -> dict:
    folder.mkdir()
    start = time.monotonic()
    children = fork(partial(train, folder, fault), 2, errors=folder)
    statuses = wait(children, timeout=120)
    return {
        "seconds": time.monotonic() - start,
        "statuses": [statuses[child] for child in children],
        "errors": [(folder / f"{rank}.txt").read_text()[-6000:] for rank in range(2)],
    }


def other_number_of_processes(folder: Path, steps_per_generation: int) -> float:
    """Two processes stop after two of four steps, one goes on; returns the largest difference to one alone."""
    common = {"steps_per_generation": steps_per_generation, "save_steps": 2, "save_strategy": "steps"}
    for name, processes, per_device, changes in (
        ("alone", 1, 8, {"max_steps": 4}),
        ("two", 2, 4, {"max_steps": 2}),
        ("resumed", 1, 8, {"max_steps": 4, "resume": str(folder / "two" / "checkpoint-2")}),
    ):
        (folder / name).mkdir(parents=True)
        work = partial(train, folder / name, "none", per_device=per_device, **common | changes)
        statuses = wait(fork(work, processes, errors=folder / name))
        if any(statuses.values()):
            raise RuntimeError(f"{name}: {statuses} {(folder / name / '0.txt').read_text()[-3000:]}")
    alone, resumed = (torch.load(folder / name / "finished.pt") for name in ("alone", "resumed"))
    return max((alone[name] - resumed[name]).abs().max().item() for name in alone)


def main(folder: Path) -> None:
    report = {fault: with_fault(folder / fault, fault) for fault in FAULTS if fault != "none"}
    report["between_rollouts"] = other_number_of_processes(folder / "between", steps_per_generation=1)
    report["within_a_rollout"] = other_number_of_processes(folder / "within", steps_per_generation=3)
    report["warning"] = (folder / "within" / "resumed" / "0.txt").read_text()
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
