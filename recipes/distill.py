# SPDX-License-Identifier: Apache-2.0
"""Trains a student on its own completions, each token of which its teacher judges (on-policy distillation).

Without arguments, the student learns two-digit addition from a teacher that has learnt it by reinforcement learning,
the result of `python recipes/grpo.py`, which is made first (some minutes on two CPU cores). The student starts where
the teacher started, and has a fifth of its steps. Every setting has a flag.

    python recipes/distill.py
    python recipes/distill.py --teacher_model_name_or_path outputs/grpo --beta 0.5 --output_dir outputs/distill_jsd

With your own models and prompts, on one or several devices. The teacher is a folder or a name with the student's
vocabulary; it may be an adapter. Rewards are optional, and only logged:

    python recipes/distill.py --config recipes/distill_minimind.yaml --model_name_or_path STUDENT \
        --teacher_model_name_or_path TEACHER --dataset_name rlaif.jsonl
    accelerate launch --config_file accelerate_configs/zero2.yaml recipes/distill.py --config ...

The run saves the student, its tokenizer, a model card and report.html in the output folder. The last line of output is
one JSON object; for the embedded task it contains the accuracies of student and teacher on held-out prompts.
"""

import quiet  # noqa: F401 - before libraries that talk about themselves are imported

# isort: split
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import embedded_task
from accelerate import PartialState
from common import (
    START_FOLDER,
    ScriptArguments,
    Task,
    finish,
    make_trainer,
    parse_arguments,
    prepare_task,
    print_result,
    start_of_embedded_task,
    tell,
)
from embedded_task import MAX_COMPLETION_LENGTH, TEMPERATURE
from running import run

from minimind_hf import DistillConfig, DistillTrainer
from minimind_hf.language import Text
from minimind_hf.reports.record import STATE_FILE

# A fifth of the 200 steps of the teacher, with as many completions in each.
EMBEDDED_DEFAULTS = {
    "output_dir": "outputs/distill",
    "max_steps": 40,
    "per_device_train_batch_size": 128,
    "learning_rate": 1e-3,
    "adam_beta2": 0.98,
    "warmup_steps": 4,
    "temperature": TEMPERATURE,
    "thinking_ratio": 1.0,
    "probe_prompts": 4,
    "probe_steps": 10,
    "max_completion_length": MAX_COMPLETION_LENGTH,
    "save_strategy": "no",
    "report_to": "none",
}
TEACHER_FOLDER = "teacher"  # in the output folder: the teacher of the embedded task, if none is given
_OF_A_LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "ACCELERATE_")


def main(arguments: Sequence[str] | None = None) -> None:
    start = time.perf_counter()
    script, args, model = parse_arguments(DistillConfig, EMBEDDED_DEFAULTS, arguments, doc=__doc__)
    is_embedded = model.model_name_or_path is None and script.dataset_name is None
    if is_embedded:
        task, taught = embedded_task_of_a_teacher(script, args)
    else:
        task, taught = prepare_task(script, args, model, needs_rewards=False), {}
    trainer = make_trainer(DistillTrainer, task, args, model)
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    after = finish(trainer, task)
    trainer.end()
    if is_embedded:
        taught = {"steps": trainer.state.global_step, **taught}
    print_result(trainer, "gkd", task, after, time.perf_counter() - start, **taught)


def embedded_task_of_a_teacher(script: ScriptArguments, args: DistillConfig) -> tuple[Task, dict[str, Any]]:
    """The embedded task for a student that starts where its teacher did; every process calls it.

    Returns:
        `tuple[Task, dict]`: The task, and the teacher's accuracy and steps, for the result (on the main process).

    Raises:
        ValueError: If the folder of the teacher does not hold what it started from.
    """
    own = args.teacher_model_name_or_path is None
    teacher = Path(args.output_dir) / TEACHER_FOLDER if own else Path(args.teacher_model_name_or_path)
    args.teacher_model_name_or_path = str(teacher)
    state, taught = PartialState(), {}
    if state.is_main_process:
        if own and not (teacher / "config.json").is_file():  # one that is there is used again
            train_teacher(teacher, script, args)
        if not (teacher / START_FOLDER).is_dir():
            raise ValueError(
                f"{teacher / START_FOLDER} is missing, the model that the teacher of the embedded task started from. "
                "Name an output folder of `python recipes/grpo.py`, or leave teacher_model_name_or_path out."
            )
        accuracy = measure(teacher, args.device)["accuracy"]
        tell(args, "held-out accuracy of the teacher: {accuracy:.1%}", accuracy=accuracy)
        taught = {"accuracy_teacher": accuracy, "steps_teacher": steps_of(teacher)}
    state.wait_for_everyone()
    folder = teacher / START_FOLDER
    train, held_out = embedded_task.split_sums()
    training = Text("distillation")
    task = Task(
        model=str(folder),
        reward_funcs=script.reward_funcs or embedded_task.REWARDS,
        train_dataset=embedded_task.as_dataset(train),
        eval_dataset=embedded_task.as_dataset(held_out),
        measure=measure,
        before=start_of_embedded_task(folder, lambda: measure(folder, args.device), measure, args, training),
        question=embedded_task.QUESTION,
        training=training,
    )
    return task, taught


def measure(folder: str | Path, device: Any) -> dict[str, float]:
    return {"accuracy": embedded_task.measure_in_fresh_process(folder, device)}


def steps_of(folder: Path) -> int | None:
    """Optimizer steps of the run that made a folder, if it tells."""
    path = folder / STATE_FILE
    return json.loads(path.read_text(encoding="utf-8"))["global_step"] if path.is_file() else None


def train_teacher(folder: Path, script: ScriptArguments, args: DistillConfig) -> None:
    """Runs recipes/grpo.py in a process of its own, and nothing of a launcher in its environment.

    Raises:
        RuntimeError: If it fails.
    """
    tell(args, "training the teacher in {folder} with recipes/grpo.py", folder=folder)
    flags = {
        "output_dir": folder,
        "seed": args.seed,
        "sft_steps": script.sft_steps,
        "sft_accuracy": script.sft_accuracy,
        "language": args.language,
    }
    command = [sys.executable, str(Path(__file__).with_name("grpo.py"))]
    command += [text for name, value in flags.items() for text in (f"--{name}", str(value))]
    command += ["--use_cpu"] if args.use_cpu else []
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OF_A_LAUNCHER)}
    if subprocess.run(command, env=kept).returncode != 0:
        raise RuntimeError(f"recipes/grpo.py could not train the teacher in {folder}; its error stands above.")


if __name__ == "__main__":
    run(main)
