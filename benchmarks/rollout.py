# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of the torch rollout engine, compared with `model.generate` and with the machine's limit.

    python benchmarks/rollout.py --workload chat --dtype float32 [--lengths longtail] [--repeats 5] [--threads 2]

Both sample the same number of completions of the same lengths from the same model and prompts, in turn. Lengths are
either all equal (`forced`) or long-tailed (`longtail`): a row ends after a random number of tokens, a quarter of the
limit on average, and one row runs to the limit.

`generate` stops a row with a `StoppingCriteria` (as after an EOS, it continues to compute the row until the last one
ends), the engine with a subclass of its scheduler. Everything else is as in normal use.

`limit_s` is the least time of these products on this machine: for each step the larger of two times, reading the
weights at the bandwidth of memory, and the products at their fastest, both measured here (see `limits.py`). Those of
the prompts, once per group, are added. `limit_ratio` is how many times longer the engine took.
"""

import argparse
import time

import torch
from limits import Machine, rollout_limit, shape_of
from transformers import StoppingCriteria, StoppingCriteriaList
from workloads import (
    DTYPES,
    NUM_GENERATIONS,
    NUM_PROMPTS,
    WORKLOADS,
    alternate,
    machine_info,
    make_model,
    make_prompts,
    median,
    print_json,
)

from minimind_hf.rollout import SamplingParams, TorchEngine
from minimind_hf.rollout.torch import engine as torch_engine
from minimind_hf.rollout.torch import scheduler as scheduling

TEMPERATURE = 0.8
NO_EOS = (-1,)


def completion_lengths(kind: str, limit: int) -> list[int]:
    """The length of each completion: the limit, or exponentially distributed with one that reaches it."""
    count = NUM_PROMPTS * NUM_GENERATIONS
    if kind == "forced":
        return [limit] * count
    quantiles = (torch.arange(count - 1, dtype=torch.float64) + 0.5) / (count - 1)
    drawn = (-torch.log1p(-quantiles) * limit / 4).round().clamp(1, limit).int().tolist()
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0)).tolist()
    return [([limit] + drawn)[i] for i in order]


class ForcedLengths(StoppingCriteria):
    def __init__(self, prompt_length: int, lengths: list[int]):
        self.prompt_length = prompt_length
        self.lengths = torch.tensor(lengths)

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids.shape[1] - self.prompt_length >= self.lengths


def scheduler_of(lengths: list[int]) -> type[scheduling.Scheduler]:
    """A scheduler whose rows end at given lengths, as if an EOS had been drawn there."""

    class ForcedScheduler(scheduling.Scheduler):
        def _room(self, completion: int) -> int:
            return lengths[completion]

    return ForcedScheduler


def run_engine(engine: TorchEngine, model, prompts, sampling: SamplingParams, lengths: list[int]) -> float:
    start = time.perf_counter()
    engine.sync_weights(model, 0)
    rollouts = engine.generate(prompts, NUM_GENERATIONS, sampling)
    seconds = time.perf_counter() - start
    check_lengths([len(rollout.completion_ids) for rollout in rollouts], lengths)
    return seconds


@torch.no_grad()
def run_generate(model, prompts, lengths: list[int]) -> float:
    input_ids = torch.tensor(prompts).repeat_interleave(NUM_GENERATIONS, 0)
    limit = max(lengths)
    start = time.perf_counter()
    sequences = model.generate(
        input_ids,
        attention_mask=torch.ones_like(input_ids),
        max_new_tokens=limit,
        do_sample=True,
        temperature=TEMPERATURE,
        top_k=0,
        eos_token_id=None,
        pad_token_id=0,
        stopping_criteria=StoppingCriteriaList([ForcedLengths(input_ids.shape[1], lengths)]),
    )
    seconds = time.perf_counter() - start
    check_lengths([sequences.shape[1] - input_ids.shape[1]], [limit])
    return seconds


def check_lengths(found: list[int], expected: list[int]) -> None:
    if found != expected:
        raise RuntimeError(f"completions have lengths {found}, expected {expected}: the comparison would not be fair.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=WORKLOADS, default="chat")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--lengths", choices=("forced", "longtail"), default="forced")
    parser.add_argument("--path", choices=torch_engine.PATHS, default="auto", help="the engine's path")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    model, prompts = make_model(args.workload, args.dtype).eval(), make_prompts(args.workload)
    lengths = completion_lengths(args.lengths, WORKLOADS[args.workload].completion_length)
    sampling = SamplingParams(max(lengths), TEMPERATURE, NO_EOS)
    engine = TorchEngine(path=args.path)
    torch_engine.Scheduler = scheduler_of(lengths)
    seconds = alternate(
        {
            "engine": lambda: run_engine(engine, model, prompts, sampling, lengths),
            "generate": lambda: run_generate(model, prompts, lengths),
        },
        args.repeats,
    )
    ours, theirs = median(seconds["engine"]), median(seconds["generate"])
    machine = Machine(DTYPES[args.dtype])
    groups = [lengths[start : start + NUM_GENERATIONS] for start in range(0, len(lengths), NUM_GENERATIONS)]
    bound = rollout_limit(shape_of(model), machine, list(map(len, prompts)), groups)
    tokens = sum(lengths)
    print(f"{'':10} {'seconds':>9} {'tokens/s':>9}")
    for name, value in (("engine", ours), ("generate", theirs), ("limit", bound)):
        print(f"{name:10} {value:9.3f} {tokens / value:9.0f}")
    print_json(
        {
            "workload": args.workload,
            "dtype": args.dtype,
            "lengths": args.lengths,
            "path": args.path,
            "tokens": tokens,
            "tokens_per_s": round(tokens / ours, 1),
            "generate_tokens_per_s": round(tokens / theirs, 1),
            "ratio": round(theirs / ours, 2),
            "ours_s": round(ours, 3),
            "limit_s": round(bound, 3),
            "limit_ratio": round(ours / bound, 2),
            "read_gb_per_s": round(machine.bytes_per_second / 1e9, 1),
            "product_gflops": round(machine.flops_per_second / 1e9),
            "repeats": args.repeats,
            **machine_info(),
        }
    )


if __name__ == "__main__":
    main()
