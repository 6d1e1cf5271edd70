# SPDX-License-Identifier: Apache-2.0
"""Tokens per second with speculation on, against off, for a policy that has learned some answers.

    python benchmarks/speculation.py --workload chat --dtype bfloat16 [--kind episodes] [--nats inf 0.5] [--folder out]

Drafts pay only where a policy says again what it, or a sibling, has said. Random weights never do, so a model of the
workload's size first learns a few answers to each of `PROMPTS` prompts, texts out of Python's own help, until an
answer costs it so many nats per token (`--nats`, from the first to the last; one measurement at each; `inf` leaves
random weights). Learning takes a few minutes; with `--folder` it is done once. Then the same prompts are drawn from in
turn with and without speculation, in epochs, each with a seed of its own: the first epoch begins with nothing
remembered.

`completions`: 2 prompts x 6 completions a request, of long-tailed lengths (see `rollout.py`). `episodes`: as many
episodes of three turns; each of the first two turns ends with the call of a tool. `nats` is what a token that was
drawn cost on the average, `differing` the share of completions that speculation changed, which bfloat16's rounding
can.

The last line is one JSON object.
"""

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from rollout import completion_lengths, scheduler_of
from scripted_agent import make_tokenizer, scripted_call
from workloads import DTYPES, NUM_GENERATIONS, NUM_PROMPTS, WORKLOADS, machine_info, make_model, median, print_json

from minimind_hf.rollout import Rollout, SamplingParams, TorchEngine
from minimind_hf.rollout.torch import engine as torch_engine
from minimind_hf.rollout.torch.drafts import Speculator

PROMPTS, ANSWERS, EPOCHS = 4, 3, 3
TEMPERATURE = 0.8
SIDES = (None, "self")
TURN, OBSERVATION = 40, 24  # tokens of a turn before its call, and of an answer to it


@dataclass
class Text:
    """A prompt, answers to learn, and what a tool says; `turns` of an answer are what the policy says itself."""

    prompt: list[int]
    answers: list[list[int]]
    observations: list[list[int]]


@dataclass
class Asked:
    """An episode, whose tool says the same however it is called."""

    prompt_ids: list[int]
    observations: list[list[int]]
    row: dict[str, Any] = field(default_factory=dict)
    turns: int = 0

    def observe(self, ids: list[int], finish_reason: str) -> list[int] | None:
        self.turns += 1
        return self.observations[self.turns - 1] if self.turns <= len(self.observations) else None


def make_texts(kind: str, prompt_length: int, length: int) -> tuple[list[Text], int]:
    """Returns what is learned, and the id that ends a turn."""
    call = scripted_call(answer_lines=3)
    tokenizer = make_tokenizer("", call)
    end = tokenizer.eos_token_id
    call = [*tokenizer.convert_tokens_to_ids(call), end]
    found = []
    for topic in sorted(topics.values(), key=len, reverse=True)[:PROMPTS]:
        ids = iter(tokenizer(topic, add_special_tokens=False)["input_ids"])

        def take(count: int, ids=ids) -> list[int]:
            return [next(ids) for _ in range(count)]

        if kind == "completions":
            found.append(Text(take(prompt_length), [take(length) for _ in range(ANSWERS)], []))
            continue
        prompt, observations = [*take(prompt_length - len(call)), *call], [take(OBSERVATION) for _ in range(2)]
        answers = []
        for _ in range(ANSWERS):
            first, second, last = ([*take(TURN), *call], [*take(TURN), *call], [*take(TURN), end])
            answers.append([*first, *observations[0], *second, *observations[1], *last])
        found.append(Text(prompt, answers, observations))
    return found, end


class Learner:
    """Teaches a model its answers, a step at a time."""

    def __init__(self, model, texts: list[Text]):
        self.model = model
        self.rows = torch.tensor([[*text.prompt, *answer] for text in texts for answer in text.answers])
        self.labels = self.rows.clone()
        self.labels[:, : len(texts[0].prompt)] = -100
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)

    def learn(self, nats: float) -> float:
        """Learns until an answer costs at most this many nats per token."""
        if math.isinf(nats):
            return nats
        self.model.train()
        while True:
            with torch.autocast("cpu", torch.bfloat16):
                loss = self.model(self.rows, labels=self.labels).loss
            if loss.item() <= nats:
                break
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
        self.model.eval()
        return loss.item()


def learned(learner: Learner, nats: float, saved: Path | None) -> float:
    """[`Learner.learn`], or weights that an earlier run saved."""
    if saved is None:
        return learner.learn(nats)
    if not saved.exists():
        torch.save({"loss": learner.learn(nats), "model": learner.model.state_dict()}, saved)
    found = torch.load(saved)
    learner.model.load_state_dict(found["model"])
    return found["loss"]


class Side:
    """The rollouts of all epochs, with or without speculation."""

    def __init__(self, model, texts: list[Text], end: int, kind: str, length: int, speculation: str | None):
        self.texts, self.end, self.kind, self.length = texts, end, kind, length
        self.engine = TorchEngine(speculation=speculation)
        self.engine.sync_weights(model, 0)

    def requests(self, seed: int) -> list[Callable[[], list[Rollout]]]:
        ends = (self.end,) if self.kind == "episodes" else (-1,)
        sampling = SamplingParams(self.length, TEMPERATURE, ends, seed)
        found = []
        for start in range(0, PROMPTS, NUM_PROMPTS):
            texts = self.texts[start : start + NUM_PROMPTS]
            found.append(lambda texts=texts: self._draw(texts, sampling))
        return found

    def _draw(self, texts: list[Text], sampling: SamplingParams) -> list[Rollout]:
        if self.kind == "completions":
            return self.engine.generate([text.prompt for text in texts], NUM_GENERATIONS, sampling)
        sessions = [Asked(text.prompt, text.observations) for text in texts for _ in range(NUM_GENERATIONS)]
        return self.engine.converse(sessions, sampling)

    def forget(self) -> None:
        """Begins again with nothing but the measured costs."""
        if self.engine.speculator is not None:
            costs = self.engine.speculator.costs
            self.engine.speculator = Speculator()
            self.engine.speculator.costs = costs


def measure(sides: dict[str | None, Side], repeats: int) -> dict[str, Any]:
    """Draws all epochs on both sides, in turn by request, `repeats` times with other seeds."""
    for side in sides.values():
        side.requests(0)[0]()  # warms up, and measures costs
    results: list[dict[str, list[float]]] = [{} for _ in range(EPOCHS)]
    nats = differing = tokens = count = 0.0
    for repeat in range(repeats):
        for side in sides.values():
            side.forget()
        for epoch, result in enumerate(results):
            seconds, drawn = dict.fromkeys(sides, 0.0), 0
            for request in zip(*(side.requests(1 + repeat * EPOCHS + epoch) for side in sides.values()), strict=True):
                found = []
                for name, draw in zip(sides, request, strict=True):
                    start = time.perf_counter()
                    found.append(draw())
                    seconds[name] += time.perf_counter() - start
                mine = [sum(each.loss_mask or [1] * len(each.completion_ids)) for each in found[0]]
                drawn += sum(mine)
                nats -= sum(sum(each.logprobs) for each in found[0])
                differing += sum(a.completion_ids != b.completion_ids for a, b in zip(*found, strict=True))
                count += len(found[0])
            tokens += drawn
            (accepted, drafted), (all_tokens, passes) = sides["self"].engine.measured().values()
            for name, value in {
                "tokens_per_s": drawn / seconds["self"],
                "off_tokens_per_s": drawn / seconds[None],
                "ratio": seconds[None] / seconds["self"],
                "acceptance": accepted / max(drafted, 1),
                "tokens_per_pass": all_tokens / passes,
            }.items():
                result.setdefault(name, []).append(value)
    epochs = [{name: round(median(values), 3) for name, values in result.items()} for result in results]
    return {"nats": round(nats / tokens, 3), "differing": round(differing / count, 3), "epochs": epochs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=WORKLOADS, default="chat")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--kind", choices=("completions", "episodes"), default="completions")
    parser.add_argument("--nats", type=float, nargs="+", default=[math.inf, 1.0, 0.5, 0.25])
    parser.add_argument("--folder", type=Path, help="keeps what was learned")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.folder:
        args.folder.mkdir(parents=True, exist_ok=True)

    shape = WORKLOADS[args.workload]
    texts, end = make_texts(args.kind, shape.prompt_length, shape.completion_length)
    model = make_model(args.workload)
    learner, found = Learner(model, texts), []
    length = shape.completion_length
    if args.kind == "completions":
        torch_engine.Scheduler = scheduler_of(completion_lengths("longtail", length))
    else:
        length = 2 * max(len(answer) for text in texts for answer in text.answers)
    for nats in args.nats:
        saved = args.folder and args.folder / f"{args.workload}_{args.kind}_{nats}.pt"
        loss = learned(learner, nats, saved)
        policy = make_model(args.workload, args.dtype).eval()
        policy.load_state_dict(model.state_dict())
        sides = {side: Side(policy, texts, end, args.kind, length, side) for side in SIDES}
        result = {"learned": None if math.isinf(loss) else round(loss, 3), **measure(sides, args.repeats)}
        found.append(result)
        for number, epoch in enumerate(result["epochs"], start=1):
            print(f"nats {result['nats']:5.2f}  epoch {number}  {epoch}", flush=True)
    setting = {name: getattr(args, name) for name in ("workload", "dtype", "kind", "repeats")}
    print_json(
        {**setting, "policies": found, "costs": sides["self"].engine.speculator.costs.state_dict(), **machine_info()}
    )


if __name__ == "__main__":
    main()
