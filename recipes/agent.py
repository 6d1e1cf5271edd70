# SPDX-License-Identifier: Apache-2.0
"""Trains a causal LM on episodes of several turns, with tools or an environment, with GRPO or PPO.

Without a model and data, a small MiniMind that is built on the spot learns one of two tasks in a few minutes on two
CPU cores: to use a calculator, or to find a number by "higher" and "lower". Every setting has a flag.

    python recipes/agent.py
    python recipes/agent.py --task guess
    python recipes/agent.py --task calculator --algorithm ppo --seed 1

With your own model, prompts, tools (functions, or lists of them) and rewards:

    python recipes/agent.py --config recipes/agent_minimind.yaml --model_name_or_path FOLDER --dataset_name FILE.jsonl
    python recipes/agent.py --model_name_or_path FOLDER --dataset_name FILE.jsonl --tools my_tools.py:search \
        --reward_funcs my_rewards.py:found
    python recipes/agent.py --model_name_or_path FOLDER --environment textarena:FrozenLake-v0

The run saves the model, its tokenizer, a model card, the reward curve and report.html in the output folder. The last
line of output is one JSON object; for the embedded tasks it contains the accuracies on held-out rows, and the mean
turns of the game.
"""

import quiet  # noqa: F401 - before libraries that talk about themselves are imported

# isort: split
import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import agent_world
import datasets
from agent_tasks import TASKS
from agent_world import AgentTask
from common import (
    START_FOLDER,
    ScriptArguments,
    Task,
    finish,
    make_trainer,
    parse_arguments,
    prepare_task,
    print_result,
    start_of_embedded_task,
)
from flags import separate_config, split_config
from minimind_tools import JudgeWithoutCalls
from running import run
from trl import ModelConfig

from minimind_hf import GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer, RLConfig
from minimind_hf.agent.loading import load_environment, load_tools

ALGORITHMS = {"grpo": (GRPOConfig, GRPOTrainer), "ppo": (PPOConfig, PPOTrainer)}


@dataclass
class AgentArguments(ScriptArguments):
    """Tools, environment, data and rewards. With neither a model nor data, an embedded task runs."""

    task: str = field(default="calculator", metadata={"help": f"Embedded task: {' or '.join(TASKS)}."})
    algorithm: str = field(default="grpo", metadata={"help": f"{' or '.join(ALGORITHMS)}."})
    tools: list[str] | None = field(
        default=None, metadata={"help": "Functions that the policy may call, or lists of them: 'file.py:name'."}
    )
    environment: str | None = field(
        default=None, metadata={"help": "An environment: 'file.py:Class', 'module:Class' or 'textarena:GAME'."}
    )
    judge_only_without_calls: bool = field(
        default=False, metadata={"help": "The reward model judges only episodes without calls, as in MiniMind."}
    )
    sft_steps: int = field(default=600, metadata={"help": "Embedded task: at most this many supervised updates."})
    sft_accuracy: float = field(
        default=0.9,
        metadata={"help": "Embedded task: share of episodes played as the worked ones at which that phase ends."},
    )


def main(arguments: Sequence[str] | None = None) -> None:
    start = time.perf_counter()
    name, algorithm = chosen(arguments)
    embedded, (config_class, trainer_class) = TASKS[name](), ALGORITHMS[algorithm]
    defaults = {**embedded.defaults[algorithm], **embedded.settings}
    script, args, model = parse_arguments(config_class, defaults, arguments, AgentArguments, __doc__, "agent")
    is_embedded = model.model_name_or_path is None and script.dataset_name is None
    task = prepare_embedded(embedded, script, args) if is_embedded else prepare_own(script, args, model)
    tools, environment = offered(script)
    if is_embedded:
        tools, environment = [*embedded.tools, *tools], environment or embedded.environment_factory
    trainer = make_trainer(trainer_class, task, args, model, tools=tools or None, environment_factory=environment)
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    after = finish(trainer, task)
    trainer.end()
    label = args.loss_type if algorithm == "grpo" else algorithm
    print_result(trainer, label, task, after, time.perf_counter() - start)


def chosen(arguments: Sequence[str] | None) -> tuple[str, str]:
    """The task and the algorithm that the flags or the yaml file name.

    Raises:
        ValueError: If there is no such task or algorithm.
    """
    flags, settings = split_config(separate_config(sys.argv[1:] if arguments is None else arguments))
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    found = []
    for name, known in (("task", TASKS), ("algorithm", ALGORITHMS)):
        parser.add_argument(f"--{name}", default=settings.get(name, getattr(AgentArguments, name)))
        value = getattr(parser.parse_known_args(flags)[0], name)
        if value not in known:
            raise ValueError(f"--{name} is {value!r}; give one of: {', '.join(known)}.")
        found.append(value)
    return tuple(found)


def offered(script: AgentArguments) -> tuple[list[Callable], Any]:
    """The tools and the environment that the flags name.

    Raises:
        ValueError: If a name is no import path, or names something else.
    """
    environment = None if script.environment is None else load_environment(script.environment)
    return load_tools(script.tools or []), environment


def prepare_embedded(embedded: AgentTask, script: AgentArguments, args: RLConfig) -> Task:
    """Builds the model and teaches it a little; every process calls it."""
    folder = Path(args.output_dir) / START_FOLDER

    def make_start() -> dict[str, float]:
        return agent_world.make_start(embedded, folder, script.sft_steps, script.sft_accuracy, args.seed, args.device)

    def measure(folder: str | Path, device: Any) -> dict[str, float]:
        return agent_world.measure_in_fresh_process(embedded, folder, device)

    return Task(
        model=str(folder),
        reward_funcs=script.reward_funcs or list(embedded.rewards),
        train_dataset=datasets.Dataset.from_list(embedded.train),
        eval_dataset=datasets.Dataset.from_list(embedded.held_out),
        measure=measure,
        before=start_of_embedded_task(folder, make_start, measure, args),
    )


def prepare_own(script: AgentArguments, args: RLConfig, model: ModelConfig) -> Task:
    """Loads the prompts; an environment may write them, and give the rewards."""
    judge = script.reward_model_name_or_path if script.judge_only_without_calls else None
    if judge is not None:
        script.reward_model_name_or_path = None
    task = prepare_task(script, args, model, environment=script.environment is not None)
    if judge is not None:
        code = bool(getattr(args, "trust_remote_code", False))
        task.reward_funcs.append(JudgeWithoutCalls.from_pretrained(judge, trust_remote_code=code))
    return task


if __name__ == "__main__":
    run(main)
