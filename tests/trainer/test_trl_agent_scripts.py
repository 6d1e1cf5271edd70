# SPDX-License-Identifier: Apache-2.0
"""trl scripts with tools and with an environment, their import changed and nothing else.

The policy is random, so its turns are written here; that they are its own is checked like every rollout of an engine.
"""

import json
import sys

import pytest
import torch
from chat_tokenizers import chat_tokenizer
from test_trl_script import run
from tiny import make_policy

from minimind_hf import Rollout
from minimind_hf.forward.logprobs import completion_scores
from minimind_hf.rollout import TorchEngine, play_in_rounds

TOKENIZER, ENDS = chat_tokenizer("qwen3")

TOOLS = '''
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

seen = []


def multiply(a: int, b: int) -> int:
    """
    Multiplies two integers.

    Args:
        a: The first integer.
        b: The second integer.

    Returns:
        The product of the two integers.
    """
    return a * b


def uses_tool(prompts, completions, completion_ids, **kwargs):
    seen.extend(zip(completions, completion_ids))
    return [float(any(message["role"] == "tool" for message in completion)) for completion in completions]


training_args = GRPOConfig(
    output_dir="run",
    per_device_train_batch_size=4,
    num_generations=4,
    max_completion_length=256,
    max_tool_calling_iterations=2,
    chat_template_kwargs={"enable_thinking": False},
    max_steps=2,
    learning_rate=0.1,
    use_cpu=True,
    report_to="none",
    save_strategy="no",
    disable_tqdm=True,
)
trainer = GRPOTrainer(
    model="model",
    reward_funcs=uses_tool,
    args=training_args,
    train_dataset=load_dataset("json", data_files="data.jsonl", split="train"),
    tools=[multiply],
)
trainer.train()
'''

ENVIRONMENT = '''
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer


class CounterEnv:
    def __init__(self):
        self.count = 0

    def reset(self, target, **kwargs) -> str | None:
        self.count, self.target = 0, target
        return f"Count to {target}."

    async def increment(self, step: int) -> int:
        """
        Increment the counter.

        Args:
            step: Value to add to the counter.

        Returns:
            The updated counter value.
        """
        self.count += step
        return self.count


def reward_func(environments, **kwargs):
    return [float(environment.count == environment.target) for environment in environments]


training_args = GRPOConfig(
    output_dir="run",
    per_device_train_batch_size=4,
    num_generations=4,
    max_completion_length=256,
    chat_template_kwargs={"enable_thinking": False},
    max_steps=2,
    learning_rate=0.1,
    use_cpu=True,
    report_to="none",
    save_strategy="no",
    disable_tqdm=True,
)
trainer = GRPOTrainer(
    model="model",
    args=training_args,
    train_dataset=load_dataset("json", data_files="data.jsonl", split="train"),
    reward_funcs=reward_func,
    environment_factory=CounterEnv,
)
trainer.train()
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A model with a template that knows tools, and prompts, in the working directory."""
    make_policy(vocab_size=len(TOKENIZER)).save_pretrained(tmp_path / "model")
    TOKENIZER.save_pretrained(tmp_path / "model")
    rows = [{"prompt": [{"role": "user", "content": f"What is 3 * {n}?"}], "target": 4} for n in range(8)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def writes(monkeypatch, *first_turns: str) -> None:
    """Gives the engine these first turns, one completion after the other; what answers a call is `Done!`."""

    def generate(engine, prompt_ids, num_generations, sampling):
        rollouts = []
        for number, ids in enumerate(prompt_ids):
            answered = "<tool_response>" in TOKENIZER.decode(ids)
            text = "Done!" if answered else first_turns[number % len(first_turns)]
            rollouts.append(scored(engine.model, ids, text, sampling.temperature))
        return rollouts

    monkeypatch.setattr(TorchEngine, "generate", generate)
    monkeypatch.setattr(TorchEngine, "converse", lambda engine, *arguments: play_in_rounds(engine, *arguments))


def scored(model, prompt: list[int], text: str, temperature: float) -> Rollout:
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"] + [ENDS[0]]
    prompt, completion = torch.tensor([list(prompt)]), torch.tensor([ids])
    with torch.no_grad():
        scores = completion_scores(
            model, prompt, torch.ones_like(prompt), completion, torch.ones_like(completion), temperature
        )
    return Rollout(ids, scores.logps[0].tolist(), "stop", weights_version=0)


def call(name: str, **arguments) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_a_script_with_tools(folder, monkeypatch):
    right, wrong = call("multiply", a=3, b=4), call("multiply", a=3, c=4)
    writes(monkeypatch, right, wrong, "I don't know any tool")
    names = run(folder, TOOLS, "", monkeypatch)
    record = names["trainer"].state.log_history[0]
    assert record["tools/call_frequency"] == pytest.approx(3 / 4)
    assert record["tools/failure_frequency"] == pytest.approx(1 / 3)
    assert record["rewards/uses_tool/mean"] == pytest.approx(3 / 4)
    completion, ids = names["seen"][0]
    assert [message["role"] for message in completion] == ["assistant", "tool", "assistant"]
    assert completion[1]["content"] == "12"
    assert TOKENIZER.decode(ids) == f"{right}<|im_end|>Done!<|im_end|>"  # the policy's own tokens


def test_a_script_with_an_environment(folder, monkeypatch):
    writes(monkeypatch, call("increment", step=4), call("increment", step=1), "I won't")
    names = run(folder, ENVIRONMENT, "", monkeypatch)
    record = names["trainer"].state.log_history[0]
    assert record["rewards/reward_func/mean"] == pytest.approx(2 / 4)
    assert record["tools/call_frequency"] == pytest.approx(3 / 4)
    assert record["tools/failure_frequency"] == 0
    assert record["episodes/turns"] == pytest.approx(7 / 4)
