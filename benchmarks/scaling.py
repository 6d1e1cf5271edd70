# SPDX-License-Identifier: Apache-2.0
"""Seconds and memory of one step as groups and prompts grow.

    python benchmarks/scaling.py --algorithm grpo

MiniMind of hidden 512 x 8 layers, 2 prompts, completions of 64 tokens: G from 2 to 32 completions at prompts of 128
tokens, then prompts from 64 to 2048 tokens at G = 6. Each setting runs in a separate process.

A step has to compute each prompt once and all its completions: `2 x (prompt + G x completion)` tokens. `growth` says
how much longer the step of a setting takes than the smallest of its row, divided by how many more tokens it has. 1 is
proportional to the tokens, below 1 is better.

A token's attention costs more the more it reads, so with long prompts the time grows faster than the tokens in any
implementation. `growth_of_products` therefore divides by the multiplications of the model's forward, including those
of attention. The last line is one JSON object with the largest of both.
"""

import argparse
import tempfile
from functools import partial

import torch
from contest import contest
from step_time import make_trainer
from workloads import DTYPES, NUM_PROMPTS, Workload, machine_info, make_model, median, print_json

from minimind_hf import MiniMindConfig

HIDDEN_SIZE, NUM_LAYERS = 512, 8
COMPLETION_LENGTH = 64
GROUP_SIZES = (2, 4, 8, 16, 32)
PROMPT_LENGTHS = (64, 128, 256, 512, 1024, 2048)
GROWTHS = {"growth": "tokens", "growth_of_products": "products"}
ROWS = {
    "num_generations": [(128, size) for size in GROUP_SIZES],
    "prompt_length": [(length, 6) for length in PROMPT_LENGTHS],
}


def measure(folder: str, prompt_length: int, num_generations: int, args: argparse.Namespace) -> dict[str, float]:
    shape = Workload(HIDDEN_SIZE, NUM_LAYERS, prompt_length, COMPLETION_LENGTH)
    maker = partial(make_trainer, args.algorithm, folder, shape, args.dtype, num_generations, args.repeats + 1)
    (steps,) = contest({"ours": maker}, args.repeats, args.threads).values()
    return {
        "prompt_length": prompt_length,
        "num_generations": num_generations,
        "tokens": NUM_PROMPTS * (prompt_length + num_generations * COMPLETION_LENGTH),
        "products": products(prompt_length, num_generations),
        "seconds": round(median([step["step"] for step in steps]), 3),
        "peak_mb": round(max(step["peak_mb"] for step in steps)),
    }


def products(prompt_length: int, num_generations: int) -> int:
    """Multiplications of a forward: weights with tokens, and queries with the keys and values that they read."""
    config = MiniMindConfig(hidden_size=HIDDEN_SIZE, num_hidden_layers=NUM_LAYERS)
    width = config.num_attention_heads * config.head_dim
    key_width = config.num_key_value_heads * config.head_dim
    of_layer = HIDDEN_SIZE * (2 * width + 2 * key_width + 3 * config.intermediate_size)
    completions = num_generations * COMPLETION_LENGTH
    pairs = prompt_length**2 / 2 + completions * (prompt_length + COMPLETION_LENGTH / 2)
    in_layers = NUM_LAYERS * ((prompt_length + completions) * of_layer + 2 * pairs * width)
    return round(NUM_PROMPTS * (in_layers + completions * HIDDEN_SIZE * config.vocab_size))


def add_growth(settings: list[dict[str, float]]) -> None:
    first = settings[0]
    for setting in settings:
        for name, measure_of_work in GROWTHS.items():
            longer, more = (setting[each] / first[each] for each in ("seconds", measure_of_work))
            setting[name] = round(longer / more, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithm", choices=("grpo", "ppo"), default="grpo")
    parser.add_argument("--dtype", choices=list(DTYPES), default="float32")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        make_model("chat").save_pretrained(folder)
        for name, settings in ROWS.items():
            rows[name] = [measure(folder, *setting, args) for setting in settings]
            add_growth(rows[name])
            for setting in rows[name]:
                print("  ".join(f"{key} {value}" for key, value in setting.items()), flush=True)
    worst = {f"worst_{name}": max(setting[name] for row in rows.values() for setting in row) for name in GROWTHS}
    print_json({"algorithm": args.algorithm, "dtype": args.dtype, **worst, **rows, **machine_info()})


if __name__ == "__main__":
    main()
