# SPDX-License-Identifier: Apache-2.0
"""What is learned per step, ours beside trl's GRPOTrainer: the same start, prompts, rewards and settings.

    python benchmarks/race.py [--sides ours trl] [--seeds 0 1 2 3 4] [--steps 100]

The sums of the recipes, as texts with the thinking opened, after their supervised start. CISPO over tokens in both, no
reference, the same optimizer and schedule. Each trainer samples by itself, so runs of one seed differ as those of two
seeds do. Held-out sums are measured every 25 steps, with the clock stopped. `--folder` keeps the start and the results
of runs; those that are there are not made again. `--figure` draws the accuracies, their mean over seeds and their
range, against steps and seconds. The last line is one JSON object.
"""

import argparse
import json
import tempfile
from pathlib import Path
from statistics import mean, stdev

import torch
import trl
from datasets import Dataset
from learning import draw_panel
from matplotlib.figure import Figure
from mixture import Curve, as_texts, of_texts
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback
from workloads import machine_info, print_json

from minimind_hf import GRPOConfig, GRPOTrainer

from embedded_task import REWARDS, make_start, split_sums  # isort: skip  # mixture makes it importable

SETTINGS = {
    "use_cpu": True,
    "bf16": False,
    "per_device_train_batch_size": 64,
    "num_generations": 8,
    "max_completion_length": 36,
    "temperature": 0.8,
    "beta": 0.0,
    "loss_type": "cispo",
    "epsilon_high": 5.0,
    "learning_rate": 3e-4,
    "lr_scheduler_type": "constant_with_warmup",
    "warmup_steps": 10,
    "adam_beta2": 0.98,
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
    "logging_steps": 25,
}
SIDES = ("ours", "trl")


def prompts(tokenizer) -> Dataset:
    train, _ = split_sums()
    rows = [{"prompt": item.messages, "answer": item.answer, "steps": item.steps} for item in train]
    return as_texts(Dataset.from_list(rows), tokenizer)


def run(start: Path, side: str, seed: int, steps: int) -> dict:
    """Trains one side and returns its curve."""
    tokenizer = AutoTokenizer.from_pretrained(start)
    model = AutoModelForCausalLM.from_pretrained(start)
    curve = Curve(tokenizer, seconds=float("inf"), every=25)
    with tempfile.TemporaryDirectory() as folder:
        common = {**SETTINGS, "output_dir": folder, "seed": seed, "data_seed": seed, "max_steps": steps}
        if side == "ours":
            kind, args = GRPOTrainer, GRPOConfig(loss_aggregation="token", **common)
        else:
            kind, args = trl.GRPOTrainer, trl.GRPOConfig(gradient_checkpointing=False, **common)
        trainer = kind(
            model,
            list(map(of_texts, REWARDS)),
            args,
            train_dataset=prompts(tokenizer),
            processing_class=tokenizer,
            callbacks=[curve],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return {"points": curve.points}


def summary(runs: dict[str, list[dict]]) -> dict:
    """By side and step: mean, standard deviation over seeds, and range of the accuracies; and seconds per step."""
    found = {}
    for side, curves in runs.items():
        by_step = zip(*(curve["points"] for curve in curves), strict=True)
        found[side] = {
            points[0][1]: {
                "mean": round(mean(p[2] for p in points), 4),
                "std": round(stdev(p[2] for p in points), 4) if len(points) > 1 else None,
                "range": [round(f(p[2] for p in points), 4) for f in (min, max)],
            }
            for points in by_step
        }
        found[f"{side}_s_per_step"] = round(mean(c["points"][-1][0] / c["points"][-1][1] for c in curves), 3)
    return found


def draw(runs: dict[str, list[dict]], path: Path) -> None:
    """Draws the accuracies of both sides against steps, and against seconds."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, column, label in zip(axes, (1, 0), ("steps", "seconds of training"), strict=True):
        curves = {
            side: [([p[column] for p in each["points"]], [p[2] for p in each["points"]]) for each in of_side]
            for side, of_side in runs.items()
        }
        draw_panel(axis, curves)
        axis.set(xlabel=label, title="share of held-out sums solved")
    axes[1].legend(frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--folder", type=Path, default=Path("outputs/race"))
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args()
    start = args.folder / "start"
    if not start.exists():
        make_start(start, max_steps=400, enough=0.5, seed=0, device="cpu")
    runs: dict[str, list[dict]] = {side: [] for side in args.sides}
    for seed in args.seeds:
        for side in args.sides:
            file = args.folder / f"{side}-{seed}.json"
            if not file.exists():
                print(f"{side}, seed {seed}", flush=True)
                file.write_text(json.dumps(run(start, side, seed, args.steps)))
            runs[side].append(json.loads(file.read_text()))
    if args.figure is not None:
        draw(runs, args.figure)
    print_json({"trl": trl.__version__, **summary(runs), "threads": torch.get_num_threads(), **machine_info()})


if __name__ == "__main__":
    main()
