# SPDX-License-Identifier: Apache-2.0
"""Seconds and peak memory of one GRPO step, against trl's GRPOTrainer.

    python benchmarks/step_time.py --workload chat --dtype float32

Both trainers run whole steps (rollout, scoring, reference, update) on the same weights, prompts, rewards and loss
settings, each in a process of its own so that peak memory can be told apart, and in turn, so that they share whatever
else the machine does. 2 prompts x 6 completions, beta 0.1. The weights are random, so completions run to their full
length but for a chance of 1 in 6400 per token. The last line is one JSON object.
"""

import argparse
import multiprocessing
import random
import resource
import tempfile
import time
from multiprocessing.connection import Connection

import torch
import trl
from common import DTYPES, NUM_GENERATIONS, NUM_PROMPTS, WORKLOADS, machine_info, make_model, median, print_json
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, TrainerCallback

from minimind_hf import GRPOConfig, GRPOTrainer

SIDES = ("ours", "peer")


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per ASCII letter, so that a text of n letters is a prompt of n tokens."""
    vocab = {token: i for i, token in enumerate(["<pad>", "<bos>", "<eos>", *map(chr, range(33, 127))])}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", behavior="isolated")
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>")


def make_dataset(prompt_length: int, count: int) -> Dataset:
    rng = random.Random(0)
    return Dataset.from_list([{"prompt": "".join(rng.choices("abcdefgh", k=prompt_length))} for _ in range(count)])


def variety(completion_ids, **kwargs) -> list[float]:
    return [len(set(ids)) / len(ids) for ids in completion_ids]


def settings(workload: str, dtype: str, steps: int, output_dir: str) -> dict:
    """What both trainers are told."""
    return {
        "output_dir": output_dir,
        "use_cpu": not torch.cuda.is_available(),
        "bf16": dtype == "bfloat16",
        "max_steps": steps,
        "per_device_train_batch_size": NUM_PROMPTS * NUM_GENERATIONS,
        "num_generations": NUM_GENERATIONS,
        "max_completion_length": WORKLOADS[workload].completion_length,
        "temperature": 0.8,
        "beta": 0.1,
        "loss_type": "cispo",
        "epsilon_high": 5.0,
        "learning_rate": 1e-6,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
    }


def make_trainer(side: str, folder: str, workload: str, dtype: str, steps: int, output_dir: str):
    common = settings(workload, dtype, steps, output_dir)
    data = make_dataset(WORKLOADS[workload].prompt_length, NUM_PROMPTS * (steps + 1))
    arguments = {"train_dataset": data, "processing_class": make_tokenizer()}
    if side == "ours":
        rollout_dtype = {"rollout_dtype": dtype} if "rollout_dtype" in GRPOConfig.__dataclass_fields__ else {}
        config = GRPOConfig(loss_aggregation="token", **rollout_dtype, **common)
        return GRPOTrainer(folder, variety, config, **arguments)
    config = trl.GRPOConfig(
        gradient_checkpointing=False, router_aux_loss_coef=0.0, use_bias_correction_kl=False, **common
    )
    return trl.GRPOTrainer(folder, variety, config, **arguments)


class StepClock(TrainerCallback):
    """Runs a step when told to, and answers with its seconds, those of its phases, and the peak memory so far."""

    def __init__(self, connection: Connection, phases: dict[str, float]):
        self.connection = connection
        self.phases = phases

    def on_train_begin(self, args, state, control, **kwargs):
        self._wait()

    def on_step_end(self, args, state, control, **kwargs):
        seconds = time.perf_counter() - self.start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        self.connection.send({"step": seconds, "peak_mb": peak, **self.phases})
        self._wait()

    def _wait(self):
        self.connection.recv()
        self.phases.clear()
        self.start = time.perf_counter()


def timed(phases: dict[str, float], name: str, function):
    def run(*args, **kwargs):
        start = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            phases[name] = phases.get(name, 0.0) + time.perf_counter() - start

    return run


def serve(connection: Connection, side: str, folder: str, workload: str, dtype: str, steps: int, threads: int) -> None:
    """One side, in its own process."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as output_dir:
        trainer = make_trainer(side, folder, workload, dtype, steps, output_dir)
        phases: dict[str, float] = {}
        names = {"ours": ("_rollout", "_score"), "peer": ("_generate", "_calculate_rewards")}[side]
        for phase, name in zip(("rollout", "scoring"), names, strict=True):
            setattr(trainer, name, timed(phases, phase, getattr(trainer, name)))
        trainer.add_callback(StepClock(connection, phases))
        trainer.train()


def measure(workload: str, dtype: str, repeats: int, threads: int) -> dict[str, list[dict]]:
    context = multiprocessing.get_context("spawn")
    steps = repeats + 1  # the first of each side warms up
    answers: dict[str, list[dict]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        make_model(workload).save_pretrained(folder)
        ends = {}
        for side in SIDES:
            ends[side], other = context.Pipe()
            arguments = (other, side, folder, workload, dtype, steps, threads)
            context.Process(target=serve, args=arguments, daemon=True).start()
        for step in range(steps):
            for side in SIDES:
                ends[side].send("go")
                answer = ends[side].recv()
                if step:
                    answers[side].append(answer)
        for end in ends.values():
            end.send("done")
        for process in multiprocessing.active_children():
            process.join()
    return answers


def summary(answers: dict[str, list[dict]]) -> dict:
    result = {}
    for side, steps in answers.items():
        result[f"{side}_s"] = median([step["step"] for step in steps])
        for phase in ("rollout", "scoring"):
            result[f"{side}_{phase}_s"] = median([step[phase] for step in steps])
        result[f"{side}_update_s"] = median([s["step"] - s["rollout"] - s["scoring"] for s in steps])
        result[f"{side}_peak_mb"] = max(step["peak_mb"] for step in steps)
    result["ratio"] = result["peer_s"] / result["ours_s"]
    result["memory_ratio"] = result["ours_peak_mb"] / result["peer_peak_mb"]
    return {name: round(value, 3) for name, value in result.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", choices=["trl"], default="trl")
    parser.add_argument("--workload", choices=list(WORKLOADS), default="chat")
    parser.add_argument("--dtype", choices=list(DTYPES), default="float32")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    answers = measure(args.workload, args.dtype, args.repeats, args.threads)
    print_json(
        {
            "workload": args.workload,
            "dtype": args.dtype,
            "peer": f"trl {trl.__version__}",
            **summary(answers),
            **machine_info(),
        }
    )


if __name__ == "__main__":
    main()
