# SPDX-License-Identifier: Apache-2.0
"""Two processes that draw unequally many further prompts; started by test_dynamic_sampling.py.

Every group of the first process teaches at once, and in the second one none does, so that it draws prompts until they
are used up: by passes, or with the torch engine while the rollout runs. Writes one JSON object to report.json: exit
codes, passes of each process, prompts that were drawn, and the largest difference of their weights.
"""

import json
from functools import partial
from pathlib import Path

import torch
from launching import fork, wait
from tiny import GRPO, make_policy, share_of_a, tiny_trainer

from minimind_hf import GRPOConfig


def train(folder: Path, engine: str, rank: int) -> None:
    def reward(completion_ids, **_):
        return share_of_a(completion_ids) if rank == 0 else [1.0] * len(completion_ids)

    config = GRPOConfig(output_dir=str(folder / "run"), dynamic_sampling=True, prompt_memory=True, **GRPO)
    trainer = tiny_trainer(config, make_policy(), reward, prompts=24, engine=None if engine == "torch" else engine)
    passes = []
    draw = trainer._draw
    trainer._draw = lambda numbers, number: (passes.append(len(numbers)), draw(numbers, number))[1]
    trainer.train()
    drawn = max(record.get("prompts/drawn", 0) for record in trainer.state.log_history)
    report = {"passes": passes, "drawn": drawn, "memory": trainer.prompt_memory._counts}
    (folder / f"{rank}.json").write_text(json.dumps(report))
    torch.save({name: each.detach() for name, each in trainer.policy.named_parameters()}, folder / f"{rank}.pt")
    trainer.end()


def main(folder: Path, engine: str = "scripted") -> None:
    (folder / "run").mkdir(parents=True)
    children = fork(partial(train, folder, engine), 2, errors=folder)
    statuses = wait(children, timeout=120)
    first, second = (torch.load(folder / f"{rank}.pt") for rank in range(2))
    report = {
        "statuses": [statuses[child] for child in children],
        "difference": max((first[name] - second[name]).abs().max().item() for name in first),
        "processes": [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)],
    }
    (folder / "report.json").write_text(json.dumps(report))
