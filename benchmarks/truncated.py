# SPDX-License-Identifier: Apache-2.0
"""What truncated sampling costs: memory of the update, and seconds of the update and of the rollout.

    python benchmarks/truncated.py --vocab 6400
    python benchmarks/truncated.py --vocab 150000

2 prompts x 6 completions are drawn and scored over their sets, with the gradient of log-probabilities. The weights are
random but sharpened, so that `top_p` cuts as it does in a trained model; `flat` leaves them, which makes the largest
sets that `top_p` alone can make. `peak_mb` is the most resident memory of an update beyond that of the process before
it (activations, gradients, chunks of logits, sets), of each way of sampling in a process of its own; glibc returns
freed blocks at once there, so resident memory is memory in use. Seconds are medians of all ways in turn. The last line
is one JSON object.
"""

import argparse
import multiprocessing
import os
import time
from pathlib import Path

import torch
from ppo_memory import resident_mb
from workloads import NUM_GENERATIONS, NUM_PROMPTS, alternate, machine_info, median, print_json

from minimind_hf import MiniMindConfig, MiniMindForCausalLM
from minimind_hf.forward.kept_tokens import KeptTokens
from minimind_hf.forward.layouts import choose_layout, score_completions
from minimind_hf.forward.token_batch import TokenBatch
from minimind_hf.rollout import SamplingParams, TorchEngine

SIDES = {
    "whole": {},
    "top_p_top_k": {"top_p": 0.95, "top_k": 50},
    "top_p": {"top_p": 0.95},
    "flat_top_p": {"top_p": 0.95},
}
PROMPT_LENGTH, TEMPERATURE, SHARPNESS = 64, 0.8, 7.0


def make_model(side: str, vocab: int) -> MiniMindForCausalLM:
    torch.manual_seed(0)
    model = MiniMindForCausalLM(MiniMindConfig(vocab_size=vocab, hidden_size=256, num_hidden_layers=4))
    if not side.startswith("flat"):
        with torch.no_grad():
            model.model.norm.weight.mul_(SHARPNESS)  # scales the logits
    choose_layout("shared_prompt", model, False)
    return model


class Contestant:
    """One way of sampling, with a model of its own.

    Args:
        side (`str`): Its name in `SIDES`.
        vocab (`int`), length (`int`): Ids of the model, and tokens of each completion.
    """

    def __init__(self, side: str, vocab: int, length: int):
        self.model, self.engine = make_model(side, vocab), TorchEngine()
        self.prompts = torch.randint(3, vocab, (NUM_PROMPTS, PROMPT_LENGTH)).tolist()
        self.sampling = SamplingParams(length, TEMPERATURE, (-1,), **SIDES[side])
        self.engine.sync_weights(self.model, 0)
        self.draw()

    def draw(self) -> float:
        start = time.perf_counter()
        self.rollouts = self.engine.generate(self.prompts, NUM_GENERATIONS, self.sampling)
        return time.perf_counter() - start

    def update(self) -> float:
        owners = [number for number in range(NUM_PROMPTS) for _ in range(NUM_GENERATIONS)]
        self.model.zero_grad()
        start = time.perf_counter()
        batch = TokenBatch(
            prompt_ids=[self.prompts[number] for number in owners],
            completion_ids=[rollout.completion_ids for rollout in self.rollouts],
            group_ids=owners,
            device=torch.device("cpu"),
            kept=[KeptTokens.of(each.kept) for each in self.rollouts] if self.sampling.is_truncated else None,
        )
        score_completions(self.model, batch, TEMPERATURE, "shared_prompt").logps.sum().backward()
        return time.perf_counter() - start

    @property
    def sets_mb(self) -> float:
        return sum(one.nbytes for rollout in self.rollouts for one in rollout.kept or []) / 2**20


def run(connection, side: str, vocab: int, length: int, threads: int) -> None:
    torch.set_num_threads(threads)
    contestant = Contestant(side, vocab, length)
    before = resident_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins again
    contestant.update()
    connection.send({"peak_mb": resident_mb("VmHWM") - before, "sets_mb": contestant.sets_mb})


def measure_memory(vocab: int, length: int, threads: int) -> dict[str, dict]:
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # read by the allocators of the processes started below
    context, results = multiprocessing.get_context("spawn"), {}
    for side in SIDES:
        end, other = context.Pipe()
        process = context.Process(target=run, args=(other, side, vocab, length, threads))
        process.start()
        other.close()
        results[side] = end.recv()
        process.join()
    return results


def measure_seconds(vocab: int, length: int, repeats: int) -> dict[str, dict]:
    contestants = {side: Contestant(side, vocab, length) for side in SIDES}
    draws = alternate({side: one.draw for side, one in contestants.items()}, repeats)
    updates = alternate({side: one.update for side, one in contestants.items()}, repeats)
    return {side: {"rollout_s": median(draws[side]), "update_s": median(updates[side])} for side in SIDES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=int, default=6400)
    parser.add_argument("--length", type=int, default=64, help="tokens of each completion")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    memory = measure_memory(args.vocab, args.length, args.threads)
    torch.set_num_threads(args.threads)
    seconds = measure_seconds(args.vocab, args.length, args.repeats)
    results = {side: memory[side] | seconds[side] for side in SIDES}
    flat = {f"{side}_{name}": value for side, result in results.items() for name, value in result.items()}
    for side in SIDES:
        for name in ("peak_mb", "update_s", "rollout_s"):
            flat[f"{side}_{name.partition('_')[0]}_ratio"] = results[side][name] / results["whole"][name]
    rounded = {name: round(value, 3) for name, value in flat.items()}
    print_json({"vocab": args.vocab, "length": args.length, **rounded, **machine_info()})


if __name__ == "__main__":
    main()
