# SPDX-License-Identifier: Apache-2.0
"""What test_rollout_servers_distributed.py runs in two processes, or in its own."""

import json
import os
import sys
from pathlib import Path

import torch
from sglang_process import make_server_trainer
from tiny import make_policy, share_of_a

from minimind_hf import RolloutEngine

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def failing_reward(completion_ids, trainer_state, **columns):
    if RANK == 1 and trainer_state.global_step == 1:
        raise LookupError("this reward knows no answer")
    return share_of_a(completion_ids)


class Recorder(RolloutEngine):
    """Passes everything on, and keeps the completions of each rollout by their prompt."""

    def __init__(self, engine: RolloutEngine):
        self.engine, self.drawn = engine, []

    def sync_weights(self, model, version):
        self.engine.sync_weights(model, version)

    def generate(self, prompt_ids, num_generations, sampling):
        rollouts = self.engine.generate(prompt_ids, num_generations, sampling)
        self.drawn.append(
            {
                tuple(ids): rollouts[number * num_generations : (number + 1) * num_generations]
                for number, ids in enumerate(prompt_ids)
            }
        )
        return rollouts

    def close(self):
        self.engine.close()


class Replay(RolloutEngine):
    """Draws what was drawn before."""

    def __init__(self, drawn: list[dict]):
        self.drawn = iter(drawn)

    def sync_weights(self, model, version):
        """Needs none."""

    def generate(self, prompt_ids, num_generations, sampling):
        drawn = next(self.drawn)
        return [rollout for ids in prompt_ids for rollout in drawn[tuple(ids)]]


def main(folder: Path, reward: str, changes: dict) -> None:
    result = {}
    try:
        replayed = changes.pop("replayed", None)
        trainer = make_server_trainer(
            folder / "run",
            # Padded batches of one process and of two differ in width, so sums do too: float64 keeps that small.
            make_policy().double(),
            {"share_of_a": share_of_a, "failing": failing_reward}[reward],
            replayed and Replay(torch.load(replayed, weights_only=False)),
            **{"per_device_train_batch_size": 8 // WORLD, "max_completion_length": 8} | changes,
        )
        recorder = trainer._rollouts.engine = Recorder(trainer._rollouts.engine)
        trainer.train()
        result = {"state": trainer.model.state_dict(), "log": trainer.state.log_history, "drawn": recorder.drawn}
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}"}
        raise
    finally:
        torch.save(result, folder / f"result_{RANK}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
