# SPDX-License-Identifier: Apache-2.0
"""Seconds and peak memory of one step, compared with trl's GRPOTrainer or our own.

    python benchmarks/step_time.py --workload chat --dtype float32
    python benchmarks/step_time.py --workload chat --algorithm ppo --peer grpo

Both trainers make whole steps (rollout, scoring, reference, update) on the same weights, prompts, rewards and loss
settings, each in a separate process, in turn. 2 prompts x 6 completions in one micro-batch, beta 0.1. The weights are
random and the learning rate is 0, so completions run to their full length except for a chance of 1 in 6400 per token.
Each side runs the way its users run it: `import minimind_hf` switches on torch's huge pages, which trl's process gets
only with `--peer_huge_pages`.

trl no longer has a PPO trainer, so PPO is compared with GRPO: a step adds the critic's values and its update, one
pass. Against our own GRPOTrainer both sample the same completions, and this is checked. `cpu_ratio` compares seconds
of CPU time, which depend less than wall-clock seconds on other load on the machine.

`limit_s` is the least time of the step's products on this machine, and `limit_ratio` how many times longer ours took
(see `limits.py`). A table has both by phase. The last line is one JSON object.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
import trl
from contest import Answer, Phases, contest
from datasets import Dataset
from limits import Machine, shape_of, step_limits
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Trainer
from workloads import (
    DTYPES,
    NUM_GENERATIONS,
    NUM_PROMPTS,
    WORKLOADS,
    Workload,
    machine_info,
    make_model,
    median,
    print_json,
)

from minimind_hf import GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer
from minimind_hf.trainer.metrics import Metrics

LOSS = {"beta": 0.1, "loss_type": "cispo", "epsilon_high": 5.0}


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


def settings(shape: Workload, dtype: str, num_generations: int, steps: int, output_dir: str) -> dict:
    """The settings of every trainer."""
    return {
        "output_dir": output_dir,
        "use_cpu": not torch.cuda.is_available(),
        "bf16": dtype == "bfloat16",
        "max_steps": steps,
        "per_device_train_batch_size": NUM_PROMPTS * num_generations,
        "num_generations": num_generations,
        "max_completion_length": shape.completion_length,
        "temperature": 0.8,
        "learning_rate": 0.0,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
    }


def make_trainer(
    kind: str,
    folder: str,
    shape: Workload,
    dtype: str,
    num_generations: int,
    steps: int,
    output_dir: str,
    phases: Phases,
) -> Trainer:
    """Returns a trainer of the kind `trl`, `grpo` or `ppo` that times its phases."""

    def reward(completion_ids, **kwargs):
        phases["completions"] = hash(tuple(map(tuple, completion_ids)))
        return variety(completion_ids)

    common = settings(shape, dtype, num_generations, steps, output_dir)
    if kind == "trl":
        trainer_class = trl.GRPOTrainer
        config = trl.GRPOConfig(gradient_checkpointing=False, use_bias_correction_kl=False, **LOSS, **common)
    elif kind == "grpo":
        trainer_class = GRPOTrainer
        config = GRPOConfig(loss_aggregation="token", rollout_dtype=dtype, **LOSS, **common)
    else:
        trainer_class = PPOTrainer
        common |= {"mini_batch_size": NUM_PROMPTS * num_generations, "ppo_update_iters": 1}
        config = PPOConfig(kl_coef=LOSS["beta"], critic_learning_rate=0.0, rollout_dtype=dtype, **common)
    data = make_dataset(shape.prompt_length, NUM_PROMPTS * (steps + 1))
    trainer = trainer_class(folder, reward, config, train_dataset=data, processing_class=make_tokenizer())
    names = ("_generate", "_calculate_rewards") if kind == "trl" else ("rollout", "score")
    for phase, name in zip(("rollout", "scoring"), names, strict=True):
        setattr(trainer, name, phases.time(phase, getattr(trainer, name)))
    if kind != "trl":
        report_phases(phases)
    return trainer


def report_phases(phases: Phases) -> None:
    """Reports the phases that our trainers time themselves, in this process."""
    original = Metrics.phase

    @contextmanager
    def phase(self: Metrics, name: str, within: str | None = None) -> Iterator[None]:
        start = time.perf_counter()
        with original(self, name, within):
            yield
        if name in ("reference", "values"):
            phases[name] = phases.get(name, 0.0) + time.perf_counter() - start

    Metrics.phase = phase


def check_completions(answers: dict[str, list[Answer]]) -> None:
    ours, peer = ([step["completions"] for step in steps] for steps in answers.values())
    if ours != peer:
        raise RuntimeError("The two trainers sampled different completions, so their times cannot be compared.")


def summary(answers: dict[str, list[Answer]]) -> dict[str, float]:
    result = {}
    for side, steps in answers.items():
        result[f"{side}_s"] = median([step["step"] for step in steps])
        result[f"{side}_cpu_s"] = median([step["cpu"] for step in steps])
        for phase in ("rollout", "scoring"):
            result[f"{side}_{phase}_s"] = median([step[phase] for step in steps])
        result[f"{side}_update_s"] = median([s["step"] - s["rollout"] - s["scoring"] for s in steps])
        result[f"{side}_peak_mb"] = max(step["peak_mb"] for step in steps)
    for name, field in (("ratio", "s"), ("cpu_ratio", "cpu_s")):
        result[name] = result[f"peer_{field}"] / result[f"ours_{field}"]
    result["memory_ratio"] = result["ours_peak_mb"] / result["peer_peak_mb"]
    return {name: round(value, 3) for name, value in result.items()}


def limits(args: argparse.Namespace) -> dict[str, float]:
    """Least seconds by phase, measured here and now."""
    torch.set_num_threads(args.threads)
    shape, machine = WORKLOADS[args.workload], Machine(DTYPES[args.dtype])
    completions = [[shape.completion_length] * NUM_GENERATIONS] * NUM_PROMPTS
    prompts = [shape.prompt_length] * NUM_PROMPTS
    found = step_limits(shape_of(make_model(args.workload)), machine, prompts, completions, args.algorithm == "ppo")
    rates = machine.flops_per_second / 1e9, machine.bytes_per_second / 1e9
    print("products at {:.0f} GFLOP/s, memory read at {:.0f} GB/s".format(*rates))
    return found


def compare_with_limits(steps: list[Answer], least: dict[str, float]) -> dict[str, float]:
    """Prints our phases beside their limits, and returns the limits for the last line."""
    seconds = {phase: [step[phase] for step in steps] for phase in ("rollout", "scoring", "reference")}
    if "values" in least:
        seconds["values"] = [step["values"] for step in steps]
    timed = list(seconds)
    seconds["update"] = [step["step"] - sum(step[phase] for phase in timed) for step in steps]
    print(f"{'':10} {'seconds':>9} {'limit':>9} {'ratio':>6}")
    for phase, times in seconds.items():
        limit, own = least.get(phase), median(times)
        print(f"{phase:10} {own:9.3f} " + (f"{limit:9.3f} {own / limit:6.2f}" if limit else ""))
    total = sum(least.values())
    result = {f"limit_{phase}_s": limit for phase, limit in least.items()} | {"limit_s": total}
    result |= {"ours_reference_s": median(seconds["reference"])}
    result |= {"limit_ratio": median([step["step"] for step in steps]) / total}
    return {name: round(value, 3) for name, value in result.items()}


def environment_of(args: argparse.Namespace) -> dict[str, str]:
    """The environment of the peer's process: torch's defaults for trl, as its users have them."""
    return {} if args.peer == "grpo" or args.peer_huge_pages else {"THP_MEM_ALLOC_ENABLE": "0"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", choices=("trl", "grpo"), default="trl", help="trl's GRPOTrainer, or ours")
    parser.add_argument("--workload", choices=list(WORKLOADS), default="chat")
    parser.add_argument("--dtype", choices=list(DTYPES), default="float32")
    parser.add_argument("--algorithm", choices=("grpo", "ppo"), default="grpo")
    parser.add_argument("--peer_huge_pages", action="store_true", help="give trl the huge pages that we switch on")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_model(args.workload).save_pretrained(folder)
        common = (folder, WORKLOADS[args.workload], args.dtype, NUM_GENERATIONS, args.repeats + 1)
        kinds = {"ours": args.algorithm, "peer": args.peer}
        makers = {side: partial(make_trainer, kind, *common) for side, kind in kinds.items()}
        answers = contest(makers, args.repeats, args.threads, {"peer": environment_of(args)})
    if args.peer == "grpo":
        check_completions(answers)
    peer = f"trl {trl.__version__}" if args.peer == "trl" else "minimind_hf GRPO"
    chosen = {"workload": args.workload, "dtype": args.dtype, "algorithm": args.algorithm, "peer": peer}
    compared = compare_with_limits(answers["ours"], limits(args))
    print_json({**chosen, **summary(answers), **compared, **machine_info()})


if __name__ == "__main__":
    main()
