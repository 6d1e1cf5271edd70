# SPDX-License-Identifier: Apache-2.0
"""Episodes per second with tools that take their time, compared with playing all episodes in lock step.

    python benchmarks/agent_latency.py [--latency 0.2] [--random]

16 episodes of up to 4 turns of random length, of the `chat` workload's model with random weights, and answers of 24
tokens that take `latency` seconds each, or with `--random` any time up to it. `engine` is the torch engine: episodes
that wait leave the batch. `patient` is the same, but waits for late answers at each step as long as at the first.
`rounds` decodes one turn of all episodes at a time, with the same engine, from their first tokens on, then waits for
all tools, which run at once. The last line is one JSON object.
"""

import argparse
import random
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from workloads import WORKLOADS, alternate, machine_info, make_model, make_prompts, median, print_json

from minimind_hf.rollout import SamplingParams, TorchEngine, play_in_rounds
from minimind_hf.rollout.torch import sessions as scheduling

NUM_GENERATIONS, NUM_TURNS = 8, 4
ANSWER_TOKENS = 24
ENDS = tuple(range(3, 203))  # of 6400 tokens: a turn has 32 on average
LESS_PATIENCE = scheduling.LESS_PATIENCE


@dataclass
class SlowSession:
    """Answers all turns but the last."""

    prompt_ids: list[int]
    seconds: list[float]
    row: dict[str, Any] = field(default_factory=dict)
    turns: int = 0

    def observe(self, ids: list[int], finish_reason: str) -> list[int] | None:
        self.turns += 1
        if self.turns == NUM_TURNS:
            return None
        time.sleep(self.seconds[self.turns])
        return list(range(300, 300 + ANSWER_TOKENS))


def sessions(prompts: list[list[int]], latency: float, is_random: bool) -> list[SlowSession]:
    rng = random.Random(0)
    return [
        SlowSession(prompt, [latency * (rng.random() if is_random else 1.0) for _ in range(NUM_TURNS)])
        for prompt in prompts
        for _ in range(NUM_GENERATIONS)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=WORKLOADS, default="chat")
    parser.add_argument("--latency", type=float, default=0.2, help="seconds of each call")
    parser.add_argument("--random", action="store_true", help="calls take any time up to the latency")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, prompts = make_model(args.workload).eval(), make_prompts(args.workload)
    sampling = SamplingParams(512, 0.8, ENDS, max_turn_length=96)
    engine = TorchEngine()
    engine.tool_workers = len(prompts) * NUM_GENERATIONS
    engine.sync_weights(model, 0)
    tokens = {}

    def run(name: str, play) -> float:
        scheduling.LESS_PATIENCE = scheduling.PATIENCE if name == "patient" else LESS_PATIENCE
        asked = sessions(prompts, args.latency, args.random)
        start = time.perf_counter()
        rollouts = play(asked, sampling)
        seconds = time.perf_counter() - start
        tokens[name] = sum(sum(rollout.loss_mask) for rollout in rollouts)
        return seconds

    players = {
        "engine": engine.converse,
        "patient": engine.converse,
        "rounds": lambda asked, params: play_in_rounds(engine, asked, params),
    }
    found = alternate({name: lambda n=name, p=play: run(n, p) for name, play in players.items()}, args.repeats)
    seconds = {name: median(each) for name, each in found.items()}
    episodes = len(prompts) * NUM_GENERATIONS
    print_json(
        {
            "workload": args.workload,
            "latency": args.latency,
            "random": args.random,
            **{f"{name}_s": round(value, 3) for name, value in seconds.items()},
            **{f"{name}_episodes_per_s": round(episodes / value, 2) for name, value in seconds.items()},
            **{f"{name}_tokens": value for name, value in tokens.items()},
            "patient_ratio": round(seconds["patient"] / seconds["engine"], 2),
            "rounds_ratio": round(seconds["rounds"] / seconds["engine"], 2),
            **machine_info(),
        }
    )


if __name__ == "__main__":
    main()
