# SPDX-License-Identifier: Apache-2.0
"""Seconds and peak memory of one step on episodes with tools, compared with trl's GRPOTrainer and with a plain loop.

    python benchmarks/agent_step.py

2 prompts x 4 episodes of 3 turns, the descriptions of two tools in each prompt, and a tool that answers at once. All
sides make whole steps (rollout, tools, scoring, reference, update) with the same model, tools, rewards and loss
settings, each in a separate process, in turn, and must train on the same ids: see `scripted_agent.py` for a model that
calls a tool in every turn. The learning rate is 0.

`loop` is our trainer with an engine that was written for this benchmark: it plays one episode after another and
computes it from the start every turn, with `model.generate`, as a script without an engine does. Its rollouts are
compared. trl's process and the loop's run without the huge pages that `import minimind_hf` switches on.

The last line is one JSON object.
"""

import argparse
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
import trl
from contest import Answer, Phases, contest
from datasets import Dataset
from scripted_agent import TOOLS, make_model, make_tokenizer, scripted_call, scripted_turn
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Trainer
from transformers.utils import get_json_schema
from workloads import DTYPES, WORKLOADS, machine_info, median, print_json

from minimind_hf import GRPOConfig, GRPOTrainer
from minimind_hf.rollout import Rollout, RolloutEngine, SamplingParams, Session, TorchEngine
from minimind_hf.rollout.transcript import Transcript

SIDES = ("ours", "trl", "loop")
NUM_PROMPTS, NUM_GENERATIONS, NUM_TURNS = 2, 4, 3
LOSS = {"beta": 0.1, "loss_type": "cispo", "epsilon_high": 5.0}
QUESTIONS = (
    "Which boats came to the northern harbour?",
    "What did the boats of the northern harbour bring, and when?",
)


class OneAtATime(RolloutEngine):
    """Plays one episode after another, each turn from the first token of its prompt on."""

    def sync_weights(self, model, version: int) -> None:
        self.model, self.version = model, version

    def generate(self, prompt_ids, num_generations: int, sampling: SamplingParams) -> list[Rollout]:
        raise NotImplementedError("Only episodes are compared.")

    def converse(self, sessions: Sequence[Session], sampling: SamplingParams) -> list[Rollout]:
        self.model.eval()
        try:
            return [self._play(session, sampling) for session in sessions]
        finally:
            self.model.train()

    def _play(self, session: Session, sampling: SamplingParams) -> Rollout:
        transcript = Transcript(sampling)
        while transcript.finish_reason is None:
            ids, logprobs = self._turn([*session.prompt_ids, *transcript.ids], transcript.room, sampling)
            reason = "stop" if ids[-1] in sampling.eos_token_ids else "length"
            transcript.add_turn(ids, logprobs, reason)
            transcript.answer(session.observe(ids, reason))
        return transcript.rollout(self.version)

    @torch.no_grad()
    def _turn(self, ids: list[int], room: int, sampling: SamplingParams) -> tuple[list[int], list[float]]:
        given = torch.tensor([ids])
        found = self.model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=room,
            do_sample=True,
            temperature=sampling.temperature,
            top_k=0,
            eos_token_id=list(sampling.eos_token_ids),
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
        )
        turn = found.sequences[0, len(ids) :]
        logps = (torch.cat(found.logits).float() / sampling.temperature).log_softmax(-1)
        return turn.tolist(), logps.gather(1, turn.unsqueeze(1)).squeeze(1).tolist()


def settings(args: argparse.Namespace, output_dir: str) -> dict:
    """The settings of every trainer."""
    return {
        "output_dir": output_dir,
        "use_cpu": True,
        "bf16": args.dtype == "bfloat16",
        "max_steps": args.repeats + 1,
        "per_device_train_batch_size": NUM_PROMPTS * NUM_GENERATIONS,
        "num_generations": NUM_GENERATIONS,
        "max_completion_length": 1024,
        "max_tool_calling_iterations": NUM_TURNS - 1,
        "temperature": 0.8,
        "learning_rate": 0.0,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        **LOSS,
    }


def make_trainer(kind: str, folder: str, args: argparse.Namespace, output_dir: str, phases: Phases) -> Trainer:
    """Returns a trainer that times its phases, and reports the ids of its episodes."""
    # A scripted policy is so sure of its tokens that gradients are below 1e-38. Intel's products of such numbers take
    # many times as long; with them as 0, both sides are timed as with a policy that learns.
    torch.set_flush_denormal(True)

    def report(episodes: list[list[int]]) -> None:
        phases["episodes"], phases["lengths"] = hash(tuple(map(tuple, episodes))), list(map(len, episodes))

    def reward(completions, completion_ids, **kwargs) -> list[float]:
        phases["turns"] = [sum(message["role"] == "assistant" for message in episode) for episode in completions]
        if kind == "trl":  # our trainer passes the policy's own tokens only
            report(completion_ids)
        return [float(number % NUM_GENERATIONS) for number in range(len(completions))]

    common = settings(args, output_dir)
    rows = [{"prompt": [{"role": "user", "content": question}]} for question in QUESTIONS] * (args.repeats + 1)
    if kind == "trl":
        config = trl.GRPOConfig(
            gradient_checkpointing=False,
            use_bias_correction_kl=False,
            chat_template_kwargs={"enable_thinking": False},
            **common,
        )
    else:
        config = GRPOConfig(loss_aggregation="token", thinking_ratio=0.0, **common)
    engines = {"ours": TorchEngine(dtype=args.dtype), "loop": OneAtATime()}
    options = {} if kind == "trl" else {"rollout_engine": engines[kind]}
    trainer_class = trl.GRPOTrainer if kind == "trl" else GRPOTrainer
    trainer = trainer_class(
        folder,
        reward,
        config,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(folder),
        tools=TOOLS,
        **options,
    )
    if kind == "trl":
        trainer._generate = phases.time("rollout", trainer._generate)
        return trainer
    original = phases.time("rollout", trainer.rollout)

    def rollout(experience) -> None:
        original(experience)
        report([each.completion_ids for each in experience.rollouts])

    trainer.rollout = rollout
    return trainer


def check(answers: dict[str, list[Answer]]) -> None:
    """Refuses to compare sides that did not train on the same episodes of three turns."""
    seen = {side: [step["episodes"] for step in steps] for side, steps in answers.items()}
    if len(set(map(tuple, seen.values()))) > 1:
        lengths = {side: steps[0]["lengths"] for side, steps in answers.items()}
        raise RuntimeError(f"The sides trained on different episodes, so they cannot be compared; lengths: {lengths}.")
    turns = answers["ours"][0]["turns"]
    if turns != [NUM_TURNS] * NUM_PROMPTS * NUM_GENERATIONS:
        raise RuntimeError(f"Episodes have {turns} turns, expected {NUM_TURNS} of each.")


def summary(answers: dict[str, list[Answer]]) -> dict[str, float]:
    result = {}
    for side, steps in answers.items():
        result[f"{side}_s"] = median([step["step"] for step in steps])
        result[f"{side}_rollout_s"] = median([step["rollout"] for step in steps])
        result[f"{side}_cpu_s"] = median([step["cpu"] for step in steps])
        result[f"{side}_peak_mb"] = max(step["peak_mb"] for step in steps)
    for side in answers.keys() - {"ours"}:
        result[f"{side}_ratio"] = result[f"{side}_s"] / result["ours_s"]
        result[f"{side}_rollout_ratio"] = result[f"{side}_rollout_s"] / result["ours_rollout_s"]
        result[f"{side}_memory_ratio"] = result["ours_peak_mb"] / result[f"{side}_peak_mb"]
    return {name: round(value, 3) for name, value in sorted(result.items())}


def lengths(tokenizer: PreTrainedTokenizerBase, answers: dict[str, list[Answer]]) -> dict[str, int]:
    schemas = [get_json_schema(tool) for tool in TOOLS]
    question = [{"role": "user", "content": QUESTIONS[0]}]
    with_tools, without = (
        len(tokenizer.apply_chat_template(question, tools=tools, add_generation_prompt=True, return_dict=False))
        for tools in (schemas, None)
    )
    episode = answers["ours"][0]["lengths"][0]
    return {"prompt_tokens": with_tools, "schema_tokens": with_tools - without, "episode_tokens": episode}


def prepare(folder: str, turn_length: int, answer_lines: int, workload: str = "chat") -> PreTrainedTokenizerBase:
    """Saves the model and the tokenizer, which has trl's template for Qwen3."""
    template = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    call = scripted_call(answer_lines)
    tokenizer = make_tokenizer(template.read_text(encoding="utf-8"), call)
    turn = scripted_turn(tokenizer, call, turn_length)
    last = tokenizer("</think>\n\n", add_special_tokens=False)["input_ids"][-1]
    make_model(workload, tokenizer, turn, [last]).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--workload", choices=list(WORKLOADS), default="chat", help="its model")
    parser.add_argument("--dtype", choices=list(DTYPES), default="float32")
    parser.add_argument("--turn_length", type=int, default=64, help="tokens of each turn, its call included")
    parser.add_argument(
        "--answer_lines", type=int, choices=(1, 2, 3), default=1, help="of the tool, some 30 tokens each"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = prepare(folder, args.turn_length, args.answer_lines, args.workload)
        makers = {side: partial(make_trainer, side, folder, args) for side in args.sides}
        answers = contest(makers, args.repeats, args.threads, {"trl": {"THP_MEM_ALLOC_ENABLE": "0"}})
    check(answers)
    print_json(
        {
            "workload": args.workload,
            "dtype": args.dtype,
            "peer": f"trl {trl.__version__}",
            "turn_tokens": args.turn_length,
            "answer_lines": args.answer_lines,
            **lengths(tokenizer, answers),
            **summary(answers),
            **machine_info(),
        }
    )


if __name__ == "__main__":
    main()
