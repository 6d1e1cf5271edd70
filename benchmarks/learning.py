# SPDX-License-Identifier: Apache-2.0
"""What small tasks come to with each algorithm: reward and held-out results against seconds, over seeds.

    python benchmarks/learning.py --task sums [--algorithms cispo grpo rloo ppo trl] [--seeds 1 2 3] [--jobs 2]

`sums` is the task of `make demo`, `calculator` and `guess` are those of `make demo-agent`: runs of the recipes with
their own settings (of the sums, a third of the steps). `reverse-text` and `reasoning-gym` have prompts that are texts
(`reverse_text.py`, `gym_mixture.py`). `trl` is trl's GRPOTrainer with the settings of our GRPO; it has no part in the
game, whose environment answers in words.

Every run is a process with one thread, `--jobs` at a time; those of one seed share their supervised start. Seconds are
those of rollouts, scoring and updates, as CPU time (`cpu_clock.py`): so other load on the machine changes them little.
Runs that the folder holds are not made again. The figure shows the mean over seeds, and their range as a band; the
last line is one JSON object.
"""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from workloads import machine_info, print_json

from minimind_hf.reports.record import STATE_FILE, RunRecord, read_run

RECIPES = Path(__file__).parents[1] / "recipes"
CPU_CLOCK, SHARED_START, RUN = (
    str(Path(__file__).with_name(name)) for name in ("cpu_clock.py", "shared_start.py", "learning_run.py")
)
REWARD = "reward"
OF_GROUPS = {
    "cispo": ["--loss_type", "cispo"],
    "grpo": ["--loss_type", "grpo"],
    "rloo": ["--loss_type", "grpo", "--advantage_estimator", "rloo"],
}
ALGORITHMS = (*OF_GROUPS, "ppo", "trl")
COLORS = {algorithm: f"C{number}" for number, algorithm in enumerate(ALGORITHMS)}  # the same in each figure
OF_RECIPES = ("sums", "calculator", "guess")


@dataclass(frozen=True)
class LearningTask:
    """An embedded task.

    Args:
        every (`int`): Optimizer steps between two evaluations.
        held_out (`str`): What evaluations log of the held-out prompts.
        label (`str`): What that is.
        evaluated (`int`): Completions that are scored at a time in an evaluation.
        steps (`dict[str, int]`): By recipe, optimizer steps where they are not its own.
    """

    every: int
    held_out: str
    label: str
    evaluated: int
    steps: dict[str, int] = field(default_factory=dict)


TASKS = {
    "sums": LearningTask(
        11, "eval_rewards/correct_answer/mean", "share of held-out sums solved", 512, {"grpo": 66, "ppo": 240}
    ),
    "calculator": LearningTask(6, "eval_rewards/correct_answer/mean", "share of held-out questions answered", 256),
    "guess": LearningTask(10, "eval_reward", "reward of held-out games", 256),
    "reverse-text": LearningTask(4, "eval_rewards/similarity/mean", "similarity on held-out texts", 256),
    "reasoning-gym": LearningTask(20, "eval_rewards/solved/mean", "share of held-out problems solved", 256),
}


def command(task: str, algorithm: str, seed: int, folder: Path) -> list[str]:
    """The command of one run."""
    wanted = TASKS[task]
    family = "ppo" if algorithm == "ppo" else "grpo"
    settings = {
        "seed": seed,
        "output_dir": str(folder),
        "run_name": f"{algorithm} seed {seed}",
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": wanted.every,
        "eval_on_start": True,
        "num_generations_eval": 1,
        "per_device_eval_batch_size": wanted.evaluated,
        "probe_prompts": 0,
        "use_cpu": True,
    }
    if family in wanted.steps:
        settings["max_steps"] = wanted.steps[family]
    start = str(folder.parent / f"start_seed_{seed}")  # which all algorithms share
    if algorithm == "trl" or task not in OF_RECIPES:
        return [sys.executable, CPU_CLOCK, RUN, task, algorithm, start, json.dumps(settings)]
    flags = [str(part) for name, value in settings.items() for part in (f"--{name}", value)]
    run = [*recipe(task, family), *flags, *OF_GROUPS.get(algorithm, [])]
    return [sys.executable, CPU_CLOCK, SHARED_START, start, *run]


def recipe(task: str, family: str) -> list[str]:
    """The recipe that runs an embedded task."""
    if task == "sums":
        return [str(RECIPES / f"{family}.py")]
    return [str(RECIPES / "agent.py"), "--task", task, "--algorithm", family]


def train(task: str, algorithm: str, seed: int, folder: Path) -> None:
    """Makes one run, unless the folder holds it.

    Raises:
        RuntimeError: With the end of what it printed, if it fails.
    """
    if (folder / STATE_FILE).is_file():
        return
    print(f"{task}: {algorithm}, seed {seed}", flush=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command(task, algorithm, seed, folder), env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(done.args)} ended with {done.returncode}:\n{done.stderr[-2000:]}")


def curve(run: RunRecord, name: str) -> tuple[list[float], list[float]]:
    """Seconds of training, and the values logged there."""
    seconds = {0: 0.0} | run.seconds_by_step
    points = [(seconds[step], value) for step, value in run.series(name).items() if step in seconds]
    return [at for at, _ in points], [value for _, value in points]


def unweighted(run: RunRecord, name: str) -> tuple[list[float], list[float]]:
    """[`curve`], with rewards as they are for the algorithms that take all of them by weight 1."""
    at, values = curve(run, name)
    weight = max(run.weights.values(), default=1.0) if name == REWARD else 1.0
    return at, [value / weight for value in values]


def over_seeds(curves: list[tuple[list[float], list[float]]]) -> tuple[np.ndarray, np.ndarray]:
    """Points `(P,)` that all curves reach, and their values there `(curves, P)`."""
    at = np.linspace(max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves), 60)
    return at, np.stack([np.interp(at, x, y) for x, y in curves])


def draw_panel(axis: Axes, found: dict[str, list[tuple[list[float], list[float]]]]) -> None:
    """Draws the mean of each group of curves, and their range as a band."""
    for label, curves in found.items():
        at, values = over_seeds(curves)
        (line,) = axis.plot(at, values.mean(axis=0), label=label, color=COLORS.get(label))
        axis.fill_between(at, values.min(axis=0), values.max(axis=0), color=line.get_color(), alpha=0.2, linewidth=0)
    axis.spines[["top", "right"]].set_visible(False)


def draw(found: dict[str, list[RunRecord]], task: str, path: Path) -> None:
    """Draws the reward and the held-out results of all algorithms."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis, name, label in zip(
        axes, (REWARD, TASKS[task].held_out), ("reward of a step", TASKS[task].label), strict=True
    ):
        draw_panel(axis, {algorithm: [unweighted(run, name) for run in runs] for algorithm, runs in found.items()})
        axis.set(xlabel="seconds of training", title=label)
    axes[1].legend(frameon=False)
    figure.savefig(path, dpi=110)


def summary(runs: list[RunRecord], task: str) -> dict[str, object]:
    """Held-out results at the start and at the end, by seed, and the seconds."""
    rewards = [name for name in runs[0].logged_names if name.startswith("eval_rewards/") and name.endswith("/mean")]
    return {name: before_and_after(runs, name) for name in dict.fromkeys([TASKS[task].held_out, *rewards])} | {
        "seconds": [round(list(run.seconds_by_step.values())[-1], 1) for run in runs],
        "steps": [run.steps for run in runs],
    }


def before_and_after(runs: list[RunRecord], name: str) -> dict[str, object]:
    """The first and the last value of a logged name, by seed."""
    series = [list(run.series(name).values()) for run in runs]
    return {
        "before": [round(values[0], 3) for values in series],
        "after": [round(values[-1], 3) for values in series],
        "mean_after": round(float(np.mean([values[-1] for values in series])), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, default="sums")
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time; one for each core")
    parser.add_argument("--folder", type=Path, default=Path("outputs/learning"))
    parser.add_argument("--figure", type=Path, help="default: FOLDER/TASK.png")
    args = parser.parse_args()
    folders = {
        algorithm: [args.folder / args.task / f"{algorithm}_seed_{seed}" for seed in args.seeds]
        for algorithm in args.algorithms
    }
    with ThreadPoolExecutor(args.jobs) as pool:
        jobs = [
            pool.submit(train, args.task, algorithm, seed, folders[algorithm][number])
            for number, seed in enumerate(args.seeds)
            for algorithm in args.algorithms
        ]
        for job in jobs:
            job.result()
    found = {algorithm: [read_run(folder) for folder in of_seeds] for algorithm, of_seeds in folders.items()}
    figure = args.figure or args.folder / f"{args.task}.png"
    draw(found, args.task, figure)
    results = {algorithm: summary(runs, args.task) for algorithm, runs in found.items()}
    print_json({"task": args.task, **results, "figure": str(figure), **machine_info()})


if __name__ == "__main__":
    main()
