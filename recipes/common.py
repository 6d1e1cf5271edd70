# SPDX-License-Identifier: Apache-2.0
"""Shared by the recipes: arguments, the task to train on, and the files left in the output folder at the end."""

import minimind_hf  # noqa: F401 - before anything creates a tensor: see minimind_hf/environment.py

# isort: split
import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import embedded_task
from accelerate import PartialState
from flags import explaining_evaluation, prepare_resume, separate_config, split_config
from transformers import Trainer
from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config

from minimind_hf import RLConfig, load_prompts
from minimind_hf.paths import check_model_path
from minimind_hf.reports.curve import plot_reward_curve
from minimind_hf.reports.page import REPORT_FILE, write_report
from minimind_hf.reports.record import STATE_FILE
from minimind_hf.trainer.base import RLTrainer
from minimind_hf.trainer.checkpoints.card import model_card

START_FOLDER = "supervised"  # in the output folder: the model that the embedded task starts from


@dataclass
class ScriptArguments:
    """Data and rewards. With neither a data set nor a model, the embedded task runs."""

    dataset_name: str | None = field(
        default=None,
        metadata={
            "help": "Prompts: a .jsonl, .json, .parquet or .csv file, a folder, a hub name, or "
            "'reasoning_gym:TASK,size=500,difficulty=1'."
        },
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of the data set."})
    dataset_train_split: str = field(default="train", metadata={"help": "Split to train on, e.g. 'train[:1000]'."})
    eval_dataset_name: str | None = field(
        default=None, metadata={"help": "Prompts for evaluations (see eval_strategy). Unset: dataset_name."}
    )
    dataset_test_split: str | None = field(
        default=None, metadata={"help": "Split to evaluate on. Unset: 'train' of eval_dataset_name, else 'test'."}
    )
    question_column: str | None = field(
        default=None, metadata={"help": "For data without prompts: the text column that becomes the user's turn."}
    )
    reward_funcs: list[str] | None = field(
        default=None,
        metadata={"help": "Names of built-in signals, 'module:name', 'file.py:name', and paths of reward models."},
    )
    reward_model_name_or_path: str | None = field(
        default=None, metadata={"help": "A reward model, appended to reward_funcs."}
    )
    sft_steps: int = field(default=400, metadata={"help": "Embedded task: at most this many supervised updates."})
    sft_accuracy: float = field(
        default=0.45, metadata={"help": "Embedded task: share of right answers at which the supervised phase ends."}
    )


@dataclass
class Task:
    """Everything that a trainer is made from.

    Args:
        model (`str`): Name or folder of the policy.
        reward_funcs (`list`): Reward functions.
        train_dataset (`datasets.Dataset`), eval_dataset (`datasets.Dataset`, *optional*): Prompts.
        dataset_name (`str`, *optional*): Where the prompts come from; `None` for the embedded task.
        accuracy_before (`float`, *optional*): On the held-out sums; known on the main process of the embedded task.
    """

    model: str
    reward_funcs: list[str | Callable]
    train_dataset: datasets.Dataset
    eval_dataset: datasets.Dataset | None
    dataset_name: str | None = None
    accuracy_before: float | None = None


def parse_arguments(
    config_class: type[RLConfig], embedded_defaults: dict[str, Any], arguments: Sequence[str] | None = None
) -> tuple[ScriptArguments, RLConfig, ModelConfig]:
    """Parses flags and the yaml file of `--config`; `embedded_defaults` are the defaults of the embedded task."""
    arguments = separate_config(sys.argv[1:] if arguments is None else arguments)
    parser = TrlParser((ScriptArguments, config_class, ModelConfig))
    given = _given_names(parser, arguments)
    if not given & {"model_name_or_path", "dataset_name"}:
        if given & {"reward_funcs", "reward_model_name_or_path"}:  # the weights belong to the task's rewards
            embedded_defaults = {name: value for name, value in embedded_defaults.items() if name != "reward_weights"}
        parser.set_defaults_with_config(**embedded_defaults)
    script, args, model = parser.parse_args_and_config(arguments)
    if isinstance(script.reward_funcs, str):  # a yaml file may name a single one without brackets
        script.reward_funcs = [script.reward_funcs]
    prepare_resume(args)
    return script, args, model


def _given_names(parser: TrlParser, arguments: list[str]) -> set[str]:
    """Which of model, data and rewards the flags or the yaml file name."""
    flags, settings = split_config(arguments)
    namespace, _ = parser.parse_known_args(flags)
    names = ("model_name_or_path", "dataset_name", "reward_funcs", "reward_model_name_or_path")
    return {name for name in names if getattr(namespace, name) or settings.get(name)}


def prepare_task(script: ScriptArguments, args: RLConfig, model: ModelConfig) -> Task:
    """Loads the prompts, or builds the embedded task; every process calls it.

    Raises:
        ValueError: If only one of model and data set is given, there is no reward, or the model is a .pth file.
    """
    rewards = [*(script.reward_funcs or []), *filter(None, [script.reward_model_name_or_path])]
    if not rewards and (script.dataset_name or "").startswith("reasoning_gym:"):
        rewards = ["reasoning_gym"]  # its tasks come with their scorer
    if model.model_name_or_path is None and script.dataset_name is None:
        return _embedded_task(script, args, rewards)
    _check_given(script, model, rewards)
    args.model_init_kwargs = model_init_kwargs(model) | (args.model_init_kwargs or {})
    eval_dataset = None
    if args.eval_strategy != "no":
        eval_split = script.dataset_test_split or ("train" if script.eval_dataset_name else "test")
        with explaining_evaluation():
            eval_dataset = _load(script, script.eval_dataset_name or script.dataset_name, eval_split)
    return Task(
        model=model.model_name_or_path,
        reward_funcs=rewards,
        train_dataset=_load(script, script.dataset_name, script.dataset_train_split),
        eval_dataset=eval_dataset,
        dataset_name=script.dataset_name,
    )


def _check_given(script: ScriptArguments, model: ModelConfig, rewards: list[str]) -> None:
    path = model.model_name_or_path
    if path is None or script.dataset_name is None:
        raise ValueError(
            f"model_name_or_path is {path!r} and dataset_name is {script.dataset_name!r}: give both, or neither for "
            "the embedded task."
        )
    if not rewards:
        raise ValueError("There is no reward. Name one or more, for example --reward_funcs length thinking format.")
    check_model_path(path)


def model_init_kwargs(model: ModelConfig) -> dict[str, Any]:
    """Arguments for `from_pretrained` from the model's flags."""
    options = {
        "revision": model.model_revision,
        "dtype": model.dtype,
        "attn_implementation": model.attn_implementation,
        "quantization_config": get_quantization_config(model),
    }
    return {name: value for name, value in options.items() if value is not None}


def _load(script: ScriptArguments, source: str, split: str) -> datasets.Dataset:
    return load_prompts(source, name=script.dataset_config, split=split, question_column=script.question_column)


def _embedded_task(script: ScriptArguments, args: RLConfig, rewards: list[str]) -> Task:
    folder = Path(args.output_dir) / START_FOLDER
    accuracy = None
    state = PartialState()
    if state.is_main_process:
        if args.resume_from_checkpoint:
            accuracy = embedded_task.measure_in_fresh_process(folder, args.device)
        else:
            accuracy = embedded_task.make_start(folder, script.sft_steps, script.sft_accuracy, args.seed, args.device)
        print(f"held-out accuracy before reinforcement learning: {accuracy:.1%}", flush=True)
    state.wait_for_everyone()
    train, held_out = embedded_task.split_sums()
    return Task(
        model=str(folder),
        reward_funcs=rewards or embedded_task.REWARDS,
        train_dataset=embedded_task.as_dataset(train),
        eval_dataset=embedded_task.as_dataset(held_out),
        accuracy_before=accuracy,
    )


def make_trainer(trainer_class: type[RLTrainer], task: Task, args: RLConfig, model: ModelConfig) -> RLTrainer:
    """The trainer for a task, with adapters if the model's flags ask for them."""
    return trainer_class(
        model=task.model,
        reward_funcs=task.reward_funcs,
        args=args,
        train_dataset=task.train_dataset,
        eval_dataset=task.eval_dataset,
        peft_config=get_peft_config(model),
    )


def finish(trainer: Trainer, task: Task) -> float | None:
    """Saves model, tokenizer, card, reward curve and report; every process calls it.

    Returns:
        `float`, *optional*: The accuracy of the saved model, on the main process of the embedded task.
    """
    output_dir = trainer.args.output_dir
    trainer.save_model(output_dir)
    accuracy = None
    if trainer.is_world_process_zero():
        if task.accuracy_before is not None:
            accuracy = embedded_task.measure_in_fresh_process(output_dir, trainer.args.device)
            print(f"held-out accuracy after reinforcement learning: {accuracy:.1%}", flush=True)
            trainer.log({"eval_accuracy_before": task.accuracy_before, "eval_accuracy_after": accuracy})
        _write_report(trainer, task)
    if trainer.args.push_to_hub:
        trainer.push_to_hub(dataset_name=task.dataset_name)
    return accuracy


def _write_report(trainer: Trainer, task: Task) -> None:
    folder = Path(trainer.args.output_dir)
    model_card(trainer, dataset_name=task.dataset_name).save(folder / "README.md")
    if any("reward" in log for log in trainer.state.log_history):
        plot_reward_curve(trainer.state.log_history, folder / "reward_curve.png", title=folder.resolve().name)
    else:
        print("no reward was logged (see logging_steps), so there is no reward curve", flush=True)
    trainer.state.save_to_json(str(folder / STATE_FILE))  # with the accuracies that were logged after training
    write_report(folder)


def print_result(trainer: Trainer, algorithm: str, task: Task, accuracy_after: float | None, seconds: float) -> None:
    """On the main process, prints what to do next and the recipe's last line, one JSON object."""
    if not trainer.is_world_process_zero():
        return
    is_embedded = task.dataset_name is None
    result = {"algorithm": algorithm}
    if is_embedded:
        result |= {"accuracy_before": task.accuracy_before, "accuracy_after": accuracy_after}
    result |= {"seconds": round(seconds, 1), "output_dir": trainer.args.output_dir}
    print(_next_steps(trainer.args.output_dir, is_embedded), flush=True)
    print(json.dumps(result), flush=True)


def _next_steps(folder: str, is_embedded: bool) -> str:
    question = ["--thinking", "--prompt", embedded_task.QUESTION] if is_embedded else []
    command = shlex.join(["chat", folder, *question])
    return f"open {Path(folder) / REPORT_FILE} for the curves; talk to the model: {_command_line_tool()} {command}"


def _command_line_tool() -> str:
    """The command as it works here: the environment may not be active, the package may not be installed."""
    beside = Path(sys.executable).with_name("minimind-hf")
    if shutil.which("minimind-hf"):
        return "minimind-hf"
    return shlex.join([os.path.relpath(beside)] if beside.exists() else [sys.executable, "-m", "minimind_hf.cli"])
