# SPDX-License-Identifier: Apache-2.0
"""Memory of LoRA PPO, whose policy, critic and reference share one base, compared with LoRA GRPO and full PPO.

    python benchmarks/ppo_memory.py --workload base

Each side trains two steps on 2 prompts x 6 completions in one micro-batch, in a separate process. `weights_mb` is the
size of all parameters held, including those of the critic and the reference, `optimizer_mb` is the optimizer's state,
and `peak_mb` is the most resident memory beyond that of the process after its imports. glibc returns freed blocks at
once here, so resident memory is memory in use. The last line is one JSON object.
"""

import argparse
import multiprocessing
import os
import tempfile
from pathlib import Path

import torch
from peft import LoraConfig
from step_time import make_dataset, make_tokenizer, variety
from torch import nn
from workloads import NUM_GENERATIONS, NUM_PROMPTS, WORKLOADS, machine_info, make_model, print_json

from minimind_hf import GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer

SIDES = ("grpo_lora", "ppo_lora", "ppo_full")
STEPS = 2


def make_trainer(side: str, folder: str, workload: str, output_dir: str):
    size = NUM_PROMPTS * NUM_GENERATIONS
    common = {
        "output_dir": output_dir,
        "use_cpu": not torch.cuda.is_available(),
        "max_steps": STEPS,
        "per_device_train_batch_size": size,
        "num_generations": NUM_GENERATIONS,
        "max_completion_length": WORKLOADS[workload].completion_length,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    arguments = {
        "train_dataset": make_dataset(WORKLOADS[workload].prompt_length, NUM_PROMPTS * STEPS),
        "processing_class": make_tokenizer(),
        "peft_config": LoraConfig(r=8, target_modules="all-linear") if side.endswith("lora") else None,
    }
    if side.startswith("grpo"):
        return GRPOTrainer(folder, variety, GRPOConfig(**common), **arguments)
    return PPOTrainer(folder, variety, PPOConfig(mini_batch_size=size, **common), **arguments)


def megabytes(tensors) -> float:
    """Size of the storages behind tensors, each counted once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values()) / 2**20


def resident_mb(field: str) -> float:
    """`VmRSS` (now) or `VmHWM` (at most so far) of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {field}; this benchmark needs Linux.")


def held_weights(trainer) -> list[torch.Tensor]:
    """Parameters of the trained model and of every model that the trainer keeps beside it."""
    kept = [trainer.model, *(value for value in vars(trainer.reference).values() if isinstance(value, nn.Module))]
    return [parameter for model in kept for parameter in model.parameters()]


def run(connection, side: str, folder: str, workload: str, threads: int) -> None:
    torch.set_num_threads(threads)
    before = resident_mb("VmRSS")
    with tempfile.TemporaryDirectory() as output_dir:
        trainer = make_trainer(side, folder, workload, output_dir)
        trainer.train()
    optimizer = [t for state in trainer.optimizer.state.values() for t in state.values() if torch.is_tensor(t)]
    connection.send(
        {
            "weights_mb": megabytes(held_weights(trainer)),
            "optimizer_mb": megabytes(optimizer),
            "peak_mb": resident_mb("VmHWM") - before,
        }
    )


def measure(workload: str, threads: int) -> dict[str, dict]:
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # read by the allocators of the processes started below
    context = multiprocessing.get_context("spawn")
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        make_model(workload).save_pretrained(folder)
        for side in SIDES:
            end, other = context.Pipe()
            process = context.Process(target=run, args=(other, side, folder, workload, threads))
            process.start()
            other.close()
            results[side] = end.recv()
            process.join()
    return results


def summary(results: dict[str, dict]) -> dict:
    state = {side: result["weights_mb"] + result["optimizer_mb"] for side, result in results.items()}
    flat = {f"{side}_{name}": value for side, result in results.items() for name, value in result.items()}
    flat["state_ratio"] = state["ppo_lora"] / state["grpo_lora"]
    flat["peak_ratio"] = results["ppo_lora"]["peak_mb"] / results["grpo_lora"]["peak_mb"]
    flat["full_weights_ratio"] = results["ppo_full"]["weights_mb"] / results["grpo_lora"]["weights_mb"]
    return {name: round(value, 3) for name, value in flat.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", choices=list(WORKLOADS), default="base")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    results = measure(args.workload, args.threads)
    print_json({"workload": args.workload, **summary(results), **machine_info()})


if __name__ == "__main__":
    main()
