# SPDX-License-Identifier: Apache-2.0
"""Two processes that train on a stream; started by test_training_streams.py.

Writes one JSON object to report.json: the rows that each process trained on, in a straight run and in one that stops
and goes on; the largest difference of their weights; what each process raises at a bad row.
"""

import json
from functools import partial
from pathlib import Path

import torch
from datasets import IterableDataset
from launching import fork, wait
from tiny import GRPO, make_prompts, share_of_a, tiny_trainer

from minimind_hf import GRPOConfig

SETTINGS = {
    **GRPO,
    "per_device_train_batch_size": 8,
    "save_strategy": "steps",
    "save_steps": 3,
    "shuffle_dataset": True,
}
BAD = 37  # not among the rows that are looked at first; read in order, it is the first process's


def rows(bad: bool):
    for row in make_prompts(40 if bad else 20):
        yield row | {"prompt": None} if bad and row["number"] == BAD else row


def train(folder: Path, run: str, rank: int, bad: bool = False, resume: str | None = None, **changes) -> None:
    trained_on = []

    def reward(completion_ids, number, **columns):
        trained_on.extend(dict.fromkeys(number))
        return share_of_a(completion_ids)

    stream = IterableDataset.from_generator(rows, gen_kwargs={"bad": bad})
    config = GRPOConfig(output_dir=str(folder / run), **SETTINGS | changes)
    trainer = tiny_trainer(config, reward=reward, prompts=stream)
    trainer.train(resume_from_checkpoint=resume)
    (folder / f"{run}-{rank}.json").write_text(json.dumps(trained_on))
    if rank == 0:
        torch.save(trainer.model.state_dict(), folder / f"{run}.pt")
    trainer.end()


def in_two_processes(folder: Path, run: str, **arguments) -> list[int]:
    (folder / run).mkdir(parents=True, exist_ok=True)
    children = fork(partial(train, folder, run, **arguments), 2, errors=folder / run)
    statuses = wait(children, timeout=120)
    return [statuses[child] for child in children]


def main(folder: Path) -> None:
    first = str(folder / "straight" / "checkpoint-3")
    statuses = [
        in_two_processes(folder, "straight", max_steps=7),
        in_two_processes(folder, "resumed", max_steps=7, resume=first),
        in_two_processes(folder, "bad", bad=True, max_steps=12, shuffle_dataset=False, learning_rate=1e-3),
    ]
    weights = [torch.load(folder / f"{run}.pt") for run in ("straight", "resumed")]
    report = {
        "statuses": statuses,
        "difference": max((weights[0][name] - weights[1][name]).abs().max().item() for name in weights[0]),
        "errors": [(folder / "bad" / f"{rank}.txt").read_text()[-4000:] for rank in range(2)],
    }
    for run in ("straight", "resumed"):
        report[run] = [json.loads((folder / f"{run}-{rank}.json").read_text()) for rank in range(2)]
    (folder / "report.json").write_text(json.dumps(report))
