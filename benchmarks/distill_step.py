# SPDX-License-Identifier: Apache-2.0
"""Seconds and peak memory of one step of distillation, compared with trl's GKDTrainer.

    python benchmarks/distill_step.py --workload chat
    python benchmarks/distill_step.py --workload chat --num_generations 1

Both trainers make whole steps (rollout by the student, teacher, update) on the same student, teacher, prompts and loss
(reverse KL, temperature 1, on the student's completions alone: `lmbda` 1), each in a separate process, in turn. A step
has 12 completions: of 2 prompts, or with `--num_generations 1` of 12; trl's trainer gets a prompt of several
completions as several rows. The weights are random and the learning rate is 0, so completions run to their full length
except for a chance of 1 in 6400 per token. Each side runs the way its users run it, as in step_time.py. The last line
is one JSON object.
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path

import torch
import trl
from contest import Answer, Phases, contest
from datasets import Dataset
from step_time import make_dataset, make_tokenizer
from transformers import Trainer
from trl.experimental.gkd import GKDConfig, GKDTrainer
from workloads import NUM_GENERATIONS, NUM_PROMPTS, WORKLOADS, Workload, machine_info, make_model, median, print_json

from minimind_hf import DistillConfig, DistillTrainer

COMPLETIONS = NUM_PROMPTS * NUM_GENERATIONS
LOSS = {"beta": 1.0, "temperature": 1.0, "lmbda": 1.0}
CONTENTS_ONLY = "{% for message in messages %}{{ message.content }}{% endfor %}"


def settings(steps: int, output_dir: str) -> dict:
    """The settings of both trainers."""
    return {
        "output_dir": output_dir,
        "use_cpu": not torch.cuda.is_available(),
        "max_steps": steps,
        "per_device_train_batch_size": COMPLETIONS,
        "learning_rate": 0.0,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        **LOSS,
    }


def rows_for_trl(prompts: Dataset, num_generations: int) -> Dataset:
    """Every prompt as often as it is answered, with an answer that is never looked at."""
    texts = [text for text in prompts["prompt"] for _ in range(num_generations)]
    answer = {"role": "assistant", "content": "a"}
    return Dataset.from_list(
        [{"prompt": text, "messages": [{"role": "user", "content": text}, answer]} for text in texts]
    )


def make_trainer(
    kind: str, folder: str, shape: Workload, num_generations: int, steps: int, output_dir: str, phases: Phases
) -> Trainer:
    """Returns a trainer of the kind `trl` or `ours` that times its rollouts."""
    student, teacher, tokenizer = Path(folder) / "student", Path(folder) / "teacher", make_tokenizer()
    tokenizer.chat_template = CONTENTS_ONLY
    common, length = settings(steps, output_dir), shape.completion_length
    data = make_dataset(shape.prompt_length, COMPLETIONS // num_generations * (steps + 1))
    if kind == "trl":
        config = GKDConfig(max_new_tokens=length, bf16=False, gradient_checkpointing=False, **common)
        rows = rows_for_trl(data, num_generations)
        trainer = GKDTrainer(str(student), str(teacher), config, train_dataset=rows, processing_class=tokenizer)
        name = "generate_on_policy_outputs"
    else:
        config = DistillConfig(num_generations=num_generations, max_completion_length=length, **common)
        trainer = DistillTrainer(str(student), str(teacher), config, train_dataset=data, processing_class=tokenizer)
        name = "rollout"
    setattr(trainer, name, phases.time("rollout", getattr(trainer, name)))
    return trainer


def summary(answers: dict[str, list[Answer]]) -> dict[str, float]:
    result = {}
    for side, steps in answers.items():
        result[f"{side}_s"] = median([step["step"] for step in steps])
        result[f"{side}_cpu_s"] = median([step["cpu"] for step in steps])
        result[f"{side}_rollout_s"] = median([step["rollout"] for step in steps])
        result[f"{side}_update_s"] = median([step["step"] - step["rollout"] for step in steps])
        result[f"{side}_peak_mb"] = max(step["peak_mb"] for step in steps)
    for name, field in (("ratio", "s"), ("cpu_ratio", "cpu_s"), ("update_ratio", "update_s")):
        result[name] = result[f"peer_{field}"] / result[f"ours_{field}"]
    result["memory_ratio"] = result["ours_peak_mb"] / result["peer_peak_mb"]
    return {name: round(value, 3) for name, value in result.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", choices=list(WORKLOADS), default="chat", help="sizes of student and teacher")
    parser.add_argument("--num_generations", type=int, choices=(1, 2, 3, 4, 6, 12), default=NUM_GENERATIONS)
    parser.add_argument("--peer_huge_pages", action="store_true", help="give trl the huge pages that we switch on")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for seed, name in enumerate(("student", "teacher")):
            make_model(args.workload, seed=seed).save_pretrained(Path(folder) / name)
        common = (folder, WORKLOADS[args.workload], args.num_generations, args.repeats + 1)
        makers = {side: partial(make_trainer, kind, *common) for side, kind in (("ours", "ours"), ("peer", "trl"))}
        pages = {} if args.peer_huge_pages else {"peer": {"THP_MEM_ALLOC_ENABLE": "0"}}
        answers = contest(makers, args.repeats, args.threads, pages)
    chosen = {"workload": args.workload, "num_generations": args.num_generations, "peer": f"trl {trl.__version__} GKD"}
    print_json({**chosen, **summary(answers), **machine_info()})


if __name__ == "__main__":
    main()
