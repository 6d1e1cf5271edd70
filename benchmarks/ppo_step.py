# SPDX-License-Identifier: Apache-2.0
"""Seconds of one PPO step against one GRPO step on the same completions, one pass each.

    python benchmarks/ppo_step.py --workload chat

Both train all weights, 2 prompts x 6 completions in one micro-batch, with a reference. The learning rates are 0 and
the seeds equal, so both draw the same completions in every step, which is checked. Each runs in a process of its own
and the two in turn, so that they share whatever else the machine does. A step is all of it: rollout, scoring, values,
reference, update; `update_ratio` leaves the rollout out. `cpu_ratio` compares the processor seconds, which depend less
on what else the machine does than those of the clock. The last line is one JSON object.
"""

import argparse
import multiprocessing
import tempfile
import time

import torch
from common import NUM_GENERATIONS, NUM_PROMPTS, WORKLOADS, machine_info, make_model, median, print_json
from step_time import StepClock, make_dataset, make_tokenizer, timed, variety

from minimind_hf import GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer

SIDES = ("grpo", "ppo")


class CpuClock(StepClock):
    """Answers with the processor seconds of the step as well."""

    def on_step_end(self, args, state, control, **kwargs):
        self.phases["cpu"] = time.process_time() - self.cpu_start
        super().on_step_end(args, state, control, **kwargs)

    def _wait(self):
        super()._wait()
        self.cpu_start = time.process_time()


def make_trainer(side: str, folder: str, workload: str, steps: int, output_dir: str, seen: list):
    def reward(completion_ids, **kwargs):
        seen.append(hash(tuple(map(tuple, completion_ids))))
        return variety(completion_ids)

    size = NUM_PROMPTS * NUM_GENERATIONS
    common = {
        "output_dir": output_dir,
        "use_cpu": not torch.cuda.is_available(),
        "max_steps": steps,
        "per_device_train_batch_size": size,
        "num_generations": NUM_GENERATIONS,
        "max_completion_length": WORKLOADS[workload].completion_length,
        "learning_rate": 0.0,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
    }
    arguments = {
        "train_dataset": make_dataset(WORKLOADS[workload].prompt_length, NUM_PROMPTS * (steps + 1)),
        "processing_class": make_tokenizer(),
    }
    if side == "grpo":
        return GRPOTrainer(folder, reward, GRPOConfig(**common), **arguments)
    config = PPOConfig(mini_batch_size=size, ppo_update_iters=1, critic_learning_rate=0.0, **common)
    return PPOTrainer(folder, reward, config, **arguments)


def serve(connection, side: str, folder: str, workload: str, steps: int, threads: int) -> None:
    """One side, in its own process."""
    torch.set_num_threads(threads)
    seen: list[int] = []
    with tempfile.TemporaryDirectory() as output_dir:
        trainer = make_trainer(side, folder, workload, steps, output_dir, seen)
        phases: dict = {}
        trainer._rollout = timed(phases, "rollout", trainer._rollout)
        trainer.add_callback(CpuClock(connection, phases))
        trainer.train()
    connection.send(seen)


def measure(workload: str, repeats: int, threads: int) -> dict[str, list[dict]]:
    context = multiprocessing.get_context("spawn")
    steps = repeats + 1  # the first of each side warms up
    answers: dict[str, list[dict]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        make_model(workload).save_pretrained(folder)
        ends = {}
        for side in SIDES:
            ends[side], other = context.Pipe()
            arguments = (other, side, folder, workload, steps, threads)
            context.Process(target=serve, args=arguments, daemon=True).start()
        for step in range(steps):
            for side in SIDES:
                ends[side].send("go")
                answer = ends[side].recv()
                if step:
                    answers[side].append(answer)
        for end in ends.values():
            end.send("done")
        grpo, ppo = (ends[side].recv() for side in SIDES)
        if grpo != ppo:
            raise RuntimeError("The two trainers drew different completions, so their times cannot be compared.")
        for process in multiprocessing.active_children():
            process.join()
    return answers


def summary(answers: dict[str, list[dict]]) -> dict:
    result = {}
    for side, steps in answers.items():
        result[f"{side}_s"] = median([step["step"] for step in steps])
        result[f"{side}_rollout_s"] = median([step["rollout"] for step in steps])
        result[f"{side}_update_s"] = median([step["step"] - step["rollout"] for step in steps])
        result[f"{side}_cpu_s"] = median([step["cpu"] for step in steps])
    result["ratio"] = result["ppo_s"] / result["grpo_s"]
    result["cpu_ratio"] = result["ppo_cpu_s"] / result["grpo_cpu_s"]
    result["update_ratio"] = result["ppo_update_s"] / result["grpo_update_s"]
    return {name: round(value, 3) for name, value in result.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", choices=list(WORKLOADS), default="chat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    answers = measure(args.workload, args.repeats, args.threads)
    print_json({"workload": args.workload, **summary(answers), **machine_info()})


if __name__ == "__main__":
    main()
