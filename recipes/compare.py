# SPDX-License-Identifier: Apache-2.0
"""Compares CISPO, GRPO, PPO and RLOO on the embedded task: one table and one page.

All start from the same model, get the same rewards with the same weights, sample the same number of completions, 128
at a time, and make two passes over them: with a single one, on completions of its own weights, CISPO is GRPO. Accuracy
on the held-out sums is measured at the start, along the way and at the end. Seeds choose the prompts, the completions
and the order of the updates; the page shows means over them, with intervals.

    python recipes/compare.py
    python recipes/compare.py --algorithms grpo ppo --seeds 1 2 --completions 2560 --output_dir outputs/short

Runs that a folder already holds to their end, with the same settings, are not made again: a comparison that was
interrupted goes on, and further seeds are added to it. The last line of output is one JSON object.
"""

import quiet

import minimind_hf  # noqa: F401 - before anything creates a tensor: see minimind_hf/environment.py

# isort: split
import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import embedded_task
import grpo
import ppo
from rich.console import Console
from rich.table import Table

from minimind_hf import GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer, RLConfig
from minimind_hf.reports.page import write_report
from minimind_hf.reports.people import counted
from minimind_hf.reports.record import RUN_FILE, STATE_FILE, RunRecord, has_log, read_run
from minimind_hf.reports.seeds import by_settings, mean_over_runs
from minimind_hf.trainer.base import RLTrainer

START_FOLDER, PAGE = "start", "comparison.html"
ACCURACY = "eval_rewards/correct_answer/mean"  # of the answers to the held-out sums
SFT_STEPS, SFT_ACCURACY = 400, 0.45  # as the demos of the single algorithms have it

# Equal for all. The weights are those of PPO's demo: its critic has less far to go; GRPO and CISPO divide by the
# standard deviation of a group and do not see them.
SHARED = {"per_device_train_batch_size": 128, "reward_weights": [0.25, 0.25]}
PASSES = 2  # over each rollout
_OF_GROUPS = {**grpo.EMBEDDED_DEFAULTS, "num_iterations": PASSES}
SETTINGS: dict[str, tuple[type[RLConfig], type[RLTrainer], dict[str, Any]]] = {
    "cispo": (GRPOConfig, GRPOTrainer, {**_OF_GROUPS, "loss_type": "cispo"}),
    "grpo": (GRPOConfig, GRPOTrainer, {**_OF_GROUPS, "loss_type": "grpo"}),
    "ppo": (PPOConfig, PPOTrainer, {**ppo.EMBEDDED_DEFAULTS, "ppo_update_iters": PASSES}),
    "rloo": (GRPOConfig, GRPOTrainer, {**_OF_GROUPS, "loss_type": "grpo", "advantage_estimator": "rloo"}),
}


def steps_per_rollout(algorithm: str) -> int:
    """Optimizer steps on one rollout of 128 completions: PPO makes several in a pass."""
    settings = SETTINGS[algorithm][2] | SHARED
    size = settings["per_device_train_batch_size"]
    return PASSES * size // settings.get("mini_batch_size", size)


def settings_of(algorithm: str, seed: int, completions: int, evaluations: int, folder: Path) -> RLConfig:
    """The settings of one run.

    Args:
        algorithm (`str`): One of `SETTINGS`.
        seed (`int`): Of the run.
        completions (`int`): How many it samples, up to a whole rollout.
        evaluations (`int`): How many there are after the first one.
        folder (`Path`): Of the comparison.
    """
    config_class, _, settings = SETTINGS[algorithm]
    rollouts = -(-completions // SHARED["per_device_train_batch_size"])
    interval = -(-rollouts // evaluations)
    steps = steps_per_rollout(algorithm)
    return config_class(
        **settings
        | SHARED
        | {
            "output_dir": str(folder / f"{algorithm}_seed_{seed}"),
            "run_name": f"{algorithm} seed {seed}",
            "seed": seed,
            "max_steps": rollouts * steps,
            "eval_strategy": "steps",
            "eval_steps": interval * steps,
            "eval_on_start": True,
            "num_generations_eval": 1,
            "per_device_eval_batch_size": 512,
        }
    )


def make_start(args: RLConfig) -> Path:
    """The model that all runs of a comparison start from; made once, beside the folders of the runs."""
    start = Path(args.output_dir).parent / START_FOLDER
    if not (start / "config.json").is_file():
        embedded_task.make_start(start, SFT_STEPS, SFT_ACCURACY, seed=0, device=args.device)
    return start


def is_done(args: RLConfig) -> bool:
    """Whether the folder holds such a run, to its end."""
    folder = Path(args.output_dir)
    if not (folder / RUN_FILE).is_file() or not (folder / STATE_FILE).is_file():
        return False
    run = read_run(folder)
    names = ("seed", "learning_rate", "per_device_train_batch_size", "temperature")
    same = all(run.settings.get(name) == getattr(args, name) for name in names)
    return same and run.settings.get("steps") == args.max_steps == run.steps


def train(algorithm: str, args: RLConfig, start: Path) -> None:
    """Makes one run, which leaves its log and its page in its folder."""
    train_sums, held_out = embedded_task.split_sums()
    trainer = SETTINGS[algorithm][1](
        model=str(start),
        reward_funcs=embedded_task.REWARDS,
        args=args,
        train_dataset=embedded_task.as_dataset(train_sums),
        eval_dataset=embedded_task.as_dataset(held_out),
    )
    trainer.train()
    trainer.end()


def accuracies(runs: Sequence[RunRecord]) -> dict[str, dict[str, float]]:
    """Accuracy of each algorithm at the end: mean over seeds, and half of its 95 % interval if there are several."""
    found = {}
    for members in by_settings(runs):
        group = [runs[place] for place in members]
        mean = mean_over_runs([list(run.series(ACCURACY).values())[-1] for run in group])
        label = str(group[0].about["run_name"]).partition(" ")[0]
        found[label] = {"accuracy": mean.value} | ({"half_width": mean.half} if mean.runs > 1 else {})
    return found


def print_table(found: dict[str, dict[str, float]], seeds: int) -> None:
    """The accuracies at the end; the page has all results."""
    shown = Table("algorithm", f"held-out accuracy, {counted(seeds, 'seed')}", box=None)
    for name, measured in found.items():
        half = f" ± {100 * measured['half_width']:.1f}" if "half_width" in measured else ""
        shown.add_row(name, f"{100 * measured['accuracy']:.1f}{half} %")
    Console().print(shown)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--algorithms", nargs="+", choices=SETTINGS, default=list(SETTINGS), help="which to compare")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="a run of each algorithm for each")
    parser.add_argument("--completions", type=int, default=12_800, help="that each run samples (default: 12800)")
    parser.add_argument("--evaluations", type=int, default=10, help="on the held-out sums, after the first one")
    parser.add_argument("--output_dir", type=Path, default=Path("outputs/compare"), help="folder of all runs")
    options = parser.parse_args(arguments)
    quiet.switch_bars_off()
    for name in ("completions", "evaluations"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}. Give a whole number of at least 1.")

    folders: list[Path] = []
    for seed in options.seeds:
        for algorithm in options.algorithms:
            args = settings_of(algorithm, seed, options.completions, options.evaluations, options.output_dir)
            folders.append(Path(args.output_dir))
            if is_done(args):
                print(f"{args.run_name}: made before", flush=True)
                continue
            print(args.run_name, flush=True)
            train(algorithm, args, make_start(args))
            write_report([folder for folder in folders if has_log(folder)], options.output_dir / PAGE)
    page = write_report(folders, options.output_dir / PAGE)
    runs = [read_run(folder) for folder in folders]
    found = accuracies(runs)
    print_table(found, len(options.seeds))
    print(f"comparison: {page}", flush=True)
    print(json.dumps({"completions": options.completions, "algorithms": found, "page": str(page)}))


if __name__ == "__main__":
    main()
