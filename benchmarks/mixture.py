# SPDX-License-Identifier: Apache-2.0
"""Seconds until a policy has learned, with dynamic sampling and without, where half of the groups teach nothing.

Seconds are those of CPU time, divided by the threads: so other load on the machine changes little.

    python benchmarks/mixture.py [--seeds 0 1 2] [--ways plain filter trl] [--seconds 150]

The prompts are sums of two digits, which the supervised start of the recipes solves half of the time, and as many
products, which it never solves: all completions of a product get the same reward. `plain` trains on what comes,
`filter` sets `dynamic_sampling`, and `filter+memory` also `prompt_memory`; `trl` is its GRPOTrainer, which gets the
prompts as texts. All other settings, the start and the seed are equal. Held-out sums are measured every few steps,
with the clock stopped.

What counts is the time until 90 % of the accuracy that `plain` ends with. `--folder` keeps the start and the curves,
so that runs can be made one by one; those that are there are not made again. The last line is one JSON object.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
from workloads import machine_info, median, print_json

from minimind_hf import GRPOConfig, GRPOTrainer

sys.path.insert(0, str(Path(__file__).parents[1] / "recipes"))
from embedded_task import REWARDS, Sum, make_start, measure, split_sums  # noqa: E402

WAYS = {
    "plain": {},
    "filter": {"dynamic_sampling": True},
    "filter+memory": {"dynamic_sampling": True, "prompt_memory": True, "solved_above": 2.5},  # of 3 or 4
    "trl": {"loss_type": "cispo", "epsilon_high": 5.0, "gradient_checkpointing": False},
}
EACH = 512  # sums, and as many products
SETTINGS = {
    "use_cpu": True,
    "per_device_train_batch_size": 128,
    "num_generations": 8,
    "max_completion_length": 36,
    "temperature": 0.8,
    "beta": 0.001,  # as in recipes/grpo.py
    "learning_rate": 3e-4,
    "lr_scheduler_type": "constant_with_warmup",
    "warmup_steps": 10,
    "adam_beta2": 0.98,
    "max_steps": 10_000,
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
    "logging_steps": 1,
}
ENOUGH = 0.9


def mixture() -> Dataset:
    train, _ = split_sums()
    sums = [{"prompt": item.messages, "answer": item.answer, "steps": item.steps} for item in train[:EACH]]
    return Dataset.from_list(
        [row for pair in zip(sums, map(product, train[EACH : 2 * EACH]), strict=True) for row in pair]
    )


def product(item: Sum) -> dict:
    """A problem in the form of the sums whose first step the policy never writes."""
    result = item.a * item.b
    question = f"{item.a} * {item.b} = ?"
    return {
        "prompt": [{"role": "user", "content": question}],
        "answer": str(result),
        "steps": [f"{item.a}*{item.b}={result}"],
    }


def of_texts(reward: Callable) -> Callable:
    """A reward function of the recipes for completions that are texts."""

    @wraps(reward)
    def rewarded(completions: list[str], **columns) -> list[float]:
        return reward([[{"role": "assistant", "content": text}] for text in completions], **columns)

    return rewarded


def as_texts(rows: Dataset, tokenizer) -> Dataset:
    """The same prompts as texts, with the thinking opened."""

    def opened(row: dict) -> dict:
        text = tokenizer.apply_chat_template(
            row["prompt"], add_generation_prompt=True, open_thinking=True, tokenize=False
        )
        return {"prompt": text}

    return rows.map(opened)


class Counting(GRPOTrainer):
    """Counts the tokens that it trains on, and those of them with an advantage."""

    trained = with_gradient = 0

    def training_batches(self, experience):
        batches = super().training_batches(experience)
        for batch in batches:
            tokens = batch.loss_mask.sum(dim=1).tolist()
            self.trained += sum(tokens)
            self.with_gradient += sum(n for n, has in zip(tokens, batch.has_advantage, strict=True) if has)
        return batches


class Curve(TrainerCallback):
    """Measures the policy every few steps, and ends the run when its time is over."""

    def __init__(self, tokenizer, seconds: float, every: int):
        self.tokenizer, self.seconds, self.every = tokenizer, seconds, every
        self.points: list[tuple[float, int, float]] = []  # seconds of training, steps, accuracy
        self.spent = 0.0
        self.held_out = split_sums()[1][:256]

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self._measure(model, 0)

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.spent += (time.process_time() - self.since) / torch.get_num_threads()
        if state.global_step % self.every == 0:
            self._measure(model, state.global_step)
        control.should_training_stop |= self.spent >= self.seconds
        self.since = time.process_time()

    def _measure(self, model, step: int) -> None:
        was_training = model.training
        accuracy = measure(model.eval(), self.tokenizer, self.held_out, samples_per_sum=2)
        model.train(was_training)
        self.points.append((round(self.spent, 2), step, accuracy))
        print(f"  {self.spent:6.1f} s  step {step:4}  {accuracy:.3f}", flush=True)
        self.since = time.process_time()


def run(start: Path, way: str, seed: int, seconds: float, every: int) -> dict:
    """Trains one way and returns its curve."""
    tokenizer = AutoTokenizer.from_pretrained(start)
    model = AutoModelForCausalLM.from_pretrained(start)
    curve = Curve(tokenizer, seconds, every)
    with tempfile.TemporaryDirectory() as folder:
        settings = {"output_dir": folder, "seed": seed, **SETTINGS, **WAYS[way]}
        common = {"processing_class": tokenizer, "callbacks": [curve]}
        if way == "trl":
            rewards, data = list(map(of_texts, REWARDS)), as_texts(mixture(), tokenizer)
            trainer = trl.GRPOTrainer(model, rewards, trl.GRPOConfig(**settings), train_dataset=data, **common)
            trainer.remove_callback(PrinterCallback)
        else:
            args = GRPOConfig(thinking_ratio=1.0, **settings)
            trainer = Counting(model, REWARDS, args, train_dataset=mixture(), **common)
        trainer.train()
    found = {"points": curve.points, "steps": trainer.state.global_step}
    return found if way == "trl" else found | of_prompts(trainer)


def of_prompts(trainer: Counting) -> dict[str, Any]:
    """What a run drew and what it learned from, and its seconds per step by phase."""
    logs = [record for record in trainer.state.log_history if "loss" in record]
    wanted = trainer.args.per_device_train_batch_size // trainer.args.num_generations
    without = [record.get("prompts/without_variance", record["frac_reward_zero_std"]) for record in logs]
    return {
        "with_gradient": trainer.with_gradient / trainer.trained,
        "drawn_per_step": sum(record.get("prompts/drawn", wanted) for record in logs) / len(logs),
        "without_variance": [sum(part) / len(part) for part in (without[:5], without[-5:])],
        "seconds": {
            name: sum(record.get(f"seconds/{name}", 0.0) for record in logs) / len(logs)
            for name in ("rollout", "scoring", "update")
        },
    }


def seconds_to(points: list, accuracy: float) -> float | None:
    """When the curve, a line between points, is at an accuracy and stays there on the average of the next points."""
    for number in range(1, len(points) - 1):
        previous, point = points[number - 1 : number + 1]
        following = [each[2] for each in points[number : number + 3]]
        if point[2] >= accuracy and sum(following) >= len(following) * accuracy:
            share = (accuracy - previous[2]) / max(point[2] - previous[2], 1e-9)
            return round(previous[0] + min(1.0, max(0.0, share)) * (point[0] - previous[0]), 1)
    return None


def compare(curves: dict[str, dict[int, dict]]) -> dict:
    """Seconds of each way to 90 % of the accuracy that `plain` ends with, by seed, and the ratio of their medians."""
    finals = {seed: sum(p[2] for p in each["points"][-3:]) / 3 for seed, each in curves["plain"].items()}
    times = {
        way: [seconds_to(of_seeds[seed]["points"], ENOUGH * finals[seed]) for seed in finals]
        for way, of_seeds in curves.items()
    }
    found = {"final_accuracy": {seed: round(value, 3) for seed, value in finals.items()}}
    for way, seconds in times.items():
        found[way] = {"seconds": seconds}
        if way != "trl":
            found[way]["with_gradient"] = round(min(each["with_gradient"] for each in curves[way].values()), 3)
        if None not in seconds and None not in times["plain"] and median(times["plain"]) > 0:
            found[way]["ratio"] = round(median(seconds) / median(times["plain"]), 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--seconds", type=float, default=150.0, help="of training, for each run")
    parser.add_argument("--every", type=int, default=5, help="steps between two measurements")
    parser.add_argument("--folder", type=Path, default=Path("outputs/mixture"))
    args = parser.parse_args()
    start = args.folder / "start"
    if not start.exists():
        make_start(start, max_steps=400, enough=0.5, seed=0, device="cpu")
    curves: dict[str, dict[int, dict]] = {way: {} for way in args.ways}
    for seed in args.seeds:
        for way in args.ways:
            file = args.folder / f"{way}-{seed}.json"
            if not file.exists():
                print(f"{way}, seed {seed}", flush=True)
                file.write_text(json.dumps(run(start, way, seed, args.seconds, args.every)))
            curves[way][seed] = json.loads(file.read_text())
    found = compare(curves) if "plain" in curves else {}
    print_json({**found, "threads": torch.get_num_threads(), **machine_info()})


if __name__ == "__main__":
    main()
