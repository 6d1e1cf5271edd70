# SPDX-License-Identifier: Apache-2.0
"""Trains, is killed by SIGKILL at random moments and resumed, again and again; started by test_kills.py.

Every life is a fork of this process, which has imported everything, so that a life costs no import. Lives tell in
shared memory how often they entered each phase; a moment is so long after such an entry.

    python kill_worker.py FOLDER PROCESSES ALGORITHM KILLS SEED
"""

import json
import mmap
import random
import struct
import sys
import time
from functools import partial
from pathlib import Path

import torch
from agent_runs import TOKENIZER, Saved, agent_policy, make_rows
from launching import fork, kill, wait
from safetensors.torch import load_file
from tiny import QUIET, make_policy, make_prompts, make_tokenizer, share_of_a
from transformers.trainer_utils import get_last_checkpoint

from minimind_hf import GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer, TorchEngine

PHASES = ("rollout", "scoring", "update", "save")
COUNTS = mmap.mmap(-1, 4 * len(PHASES))
SETTINGS = {
    **QUIET,
    "logging_steps": 4,
    "learning_rate": 1e-2,
    "max_steps": 14,
    "save_strategy": "steps",
    "save_steps": 1,
    "save_total_limit": 2,
    "max_completion_length": 6,
    "per_device_train_batch_size": 4,
}
ALGORITHMS = {
    "grpo": (GRPOTrainer, GRPOConfig, {"num_generations": 4, "steps_per_generation": 3}),
    "ppo": (PPOTrainer, PPOConfig, {"mini_batch_size": 2, "early_stop_kl": 0.02, "critic_learning_rate": 1e-2}),
}
EPISODES = {"max_completion_length": 48, "max_turn_length": 12, "thinking_ratio": 0.0}


def count(phase: str) -> int:
    return struct.unpack_from("i", COUNTS, 4 * PHASES.index(phase))[0]


def entered(phase: str) -> None:
    struct.pack_into("i", COUNTS, 4 * PHASES.index(phase), count(phase) + 1)


def build(folder: Path, algorithm: str):
    trainer_class, config_class, own = ALGORITHMS[algorithm.removesuffix("_agent")]

    class Watched(trainer_class):
        def training_step(self, *args, **kwargs):
            entered("update")
            return super().training_step(*args, **kwargs)

        def _save_checkpoint(self, *args, **kwargs):
            entered("save")
            super()._save_checkpoint(*args, **kwargs)

    class Engine(TorchEngine):
        def generate(self, *args):
            entered("rollout")
            return super().generate(*args)

        def converse(self, *args):
            entered("rollout")
            return super().converse(*args)

    def reward(**kwargs):
        entered("scoring")
        return share_of_a(**kwargs)

    if algorithm.endswith("_agent"):
        return Watched(
            agent_policy(),
            reward,
            config_class(output_dir=str(folder), **SETTINGS | own | EPISODES),
            train_dataset=make_rows(24),
            processing_class=TOKENIZER,
            rollout_engine=Engine(),
            environment_factory=Saved,
        )
    prompts = [{"prompt": [{"role": "user", "content": row["prompt"]}]} for row in make_prompts(24)]
    return Watched(
        make_policy(),
        reward,
        config_class(output_dir=str(folder), **SETTINGS | own),
        train_dataset=prompts,
        processing_class=make_tokenizer(),
        rollout_engine=Engine(),
    )


def life(folder: Path, algorithm: str, rank: int) -> None:
    """Goes on from the last checkpoint; the first process writes `finished.pt` when training has ended."""
    trainer = build(folder, algorithm)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(folder) if folder.exists() else None)
    if rank == 0:
        torch.save(trainer.model.state_dict(), folder / "finished.pt")
    trainer.end()


def start_life(folder: Path, algorithm: str, processes: int) -> list[int]:
    for phase in PHASES:
        struct.pack_into("i", COUNTS, 4 * PHASES.index(phase), 0)
    return fork(partial(life, folder, algorithm), processes)


def live(folder: Path, algorithm: str, processes: int, phase: str | None, rng: random.Random) -> bool:
    """Lives until a random moment of the phase, or to the end; returns whether it was killed."""
    children = start_life(folder, algorithm, processes)
    entries = rng.randint(1, 3)
    statuses = wait(children, until=lambda: phase is not None and count(phase) >= entries)
    if statuses is None:
        time.sleep(rng.uniform(0, 0.03))
        kill(children)
        return True
    if any(statuses.values()):
        raise RuntimeError(f"A life ended with {statuses} that nobody had killed.")
    return False


def check_readable(folder: Path) -> int:
    """Reads every checkpoint whole; returns how many there are."""
    checkpoints = list(folder.glob("checkpoint-*"))
    for checkpoint in checkpoints:
        json.loads((checkpoint / "trainer_state.json").read_text())
        for path in checkpoint.rglob("*.safetensors"):
            load_file(path)
        for path in [*checkpoint.glob("optimizer.pt"), *checkpoint.glob("rollout_state_*.pt")]:
            torch.load(path, weights_only=True)
    return len(checkpoints)


def main(folder: Path, processes: int, algorithm: str, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    live(folder / "straight", algorithm, processes, None, rng)
    expected = torch.load(folder / "straight" / "finished.pt")
    report = {"kills": dict.fromkeys(PHASES, 0), "finished": 0, "equal": 0, "checkpoints_read": 0}
    done, killed = 0, True
    while done < kills or killed:  # whatever was killed last is resumed to its end too
        phase = PHASES[done % len(PHASES)] if done < kills else None
        run = folder / f"killed_{report['finished']}"
        killed = live(run, algorithm, processes, phase, rng)
        report["checkpoints_read"] += check_readable(run)
        if killed:
            done += 1
            report["kills"][phase] += 1
        else:
            found = torch.load(run / "finished.pt")
            report["finished"] += 1
            report["equal"] += all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
