# SPDX-License-Identifier: Apache-2.0
"""Agent training of a real instruction-tuned model: GRPO with LoRA, and products that it cannot calculate by itself.

    python benchmarks/agent_real.py FOLDER

FOLDER holds a causal LM that speaks ChatML, such as SmolLM2-135M-Instruct. Its own chat template shows no tools, so a
template of the same format is set that does. Two worked examples in each prompt show what a call looks like.
An episode earns 1 if the last turn gives the product, and 0.2 if a call was made and answered. The last line is one
JSON object: reward, right answers and calls that parse, over the first and the last ten steps.
"""

import argparse
import random
import re
import tempfile
import time

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer
from workloads import machine_info, print_json

from minimind_hf import GRPOConfig, GRPOTrainer
from minimind_hf.agent import calculate

TEMPLATE = """\
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') }}
{%- if loop.first and tools %}
{%- for tool in tools %}{{ ' Tool: ' + tool.function.name + ': ' + tool.function.description }}{% endfor %}
{%- endif %}
{%- for call in m.tool_calls or [] %}
{{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- '}</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
SYSTEM = {"role": "system", "content": "Use the calculator, then say the result."}
SPAN = 10  # steps of the beginning and of the end that are compared


def product_of(first: int, second: int) -> list[dict]:
    """A worked example: question, call, answer of the tool, answer."""
    function = {"name": "calculate", "arguments": {"expression": f"{first} * {second}"}}
    return [
        {"role": "user", "content": f"What is {first} * {second}?"},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
        {"role": "tool", "content": str(first * second)},
        {"role": "assistant", "content": f"It is {first * second}."},
    ]


def make_rows(count: int, seed: int = 0) -> Dataset:
    """Questions for products of two-digit numbers, each after two worked examples."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        pairs = [(rng.randint(12, 99), rng.randint(12, 99)) for _ in range(3)]
        messages = [message for pair in pairs for message in product_of(*pair)]
        rows.append({"prompt": [SYSTEM, *messages[:-3]], "product": str(pairs[-1][0] * pairs[-1][1])})
    return Dataset.from_list(rows)


def right(completions, product, **kwargs) -> list[float]:
    """1 if the last turn of an episode names the product, and no other number after it."""
    return [
        float(re.findall(r"\d+", turns[-1]["content"].replace(",", ""))[-1:] == [wanted])
        for turns, wanted in zip(completions, product, strict=True)
    ]


def called(completions, **kwargs) -> list[float]:
    """1 if some call was answered by a result."""
    answers = [[turn["content"] for turn in turns if turn["role"] == "tool"] for turns in completions]
    return [float(any(not answer.startswith("Error") for answer in each)) for each in answers]


def make_trainer(folder: str, output_dir: str, options: argparse.Namespace) -> GRPOTrainer:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    args = GRPOConfig(
        output_dir=output_dir,
        max_steps=options.steps,
        per_device_train_batch_size=options.prompts * options.episodes,
        num_generations=options.episodes,
        max_turns=2,
        max_turn_length=40,
        max_completion_length=96,
        temperature=1.0,
        learning_rate=options.learning_rate,
        lr_scheduler_type="constant",
        loss_type="dapo",
        beta=0.0,
        reward_weights=[1.0, 0.2],
        bf16=True,
        use_cpu=not torch.cuda.is_available(),
        log_completions=options.log_completions,
        report_to="none",
        save_strategy="no",
        seed=options.seed,
    )
    return GRPOTrainer(
        folder,
        [right, called],
        args,
        make_rows(options.prompts * options.steps),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
        tools=[calculate],
    )


def compared(records: list[dict]) -> dict[str, list[float]]:
    """What was logged, as the means over the first and over the last steps."""
    names = {
        "reward": "reward",
        "right": "rewards/right/mean",
        "calls": "tools/call_frequency",
        "unparsed": "tools/failed/unparsed",
        "turns": "episodes/turns",
    }
    return {
        short: [
            round(sum(record.get(name, 0.0) for record in part) / len(part), 3)
            for part in (records[:SPAN], records[-SPAN:])
        ]
        for short, name in names.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Agent training of a real model.")
    parser.add_argument("folder", help="the model, as a transformers folder")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--prompts", type=int, default=1, help="per step")
    parser.add_argument("--episodes", type=int, default=6, help="per prompt")
    parser.add_argument("--learning_rate", type=float, default=3e-4)
    parser.add_argument("--log_completions", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as output_dir:
        trainer = make_trainer(options.folder, output_dir, options)
        start = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - start
    records = [record for record in trainer.state.log_history if "rewards/right/mean" in record]
    print_json({**vars(options), "seconds": round(seconds), **compared(records), **machine_info()})


if __name__ == "__main__":
    main()
