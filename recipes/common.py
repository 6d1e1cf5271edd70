# SPDX-License-Identifier: Apache-2.0
"""Shared by the recipes: arguments, the task to train on, and the files left in the output folder at the end."""

import quiet

import minimind_hf  # noqa: F401 - before anything creates a tensor: see minimind_hf/environment.py

# isort: split
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import datasets
import embedded_task
from accelerate import PartialState
from flags import explaining_evaluation, prepare_resume, separate_config, will_evaluate
from recipe_parser import RecipeParser
from transformers import Trainer
from trl import ModelConfig, get_peft_config, get_quantization_config

from minimind_hf import RLConfig, load_prompts
from minimind_hf.atomic import whole_file
from minimind_hf.data import PromptError
from minimind_hf.language import Text, said, speaking
from minimind_hf.paths import check_model_path
from minimind_hf.reports.curve import plot_reward_curve
from minimind_hf.reports.page import write_report
from minimind_hf.reports.record import STATE_FILE
from minimind_hf.trainer.base import RLTrainer
from minimind_hf.trainer.checkpoints.card import model_card
from minimind_hf.trainer.logs.closing import closing_lines
from minimind_hf.trainer.settings.given import note_made

Measure = Callable[[str | Path, Any], dict[str, float]]

_LOADING = {"model_init_kwargs", "model_revision", "dtype", "attn_implementation", "load_in_8bit", "load_in_4bit"}
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
        train_dataset (`datasets.Dataset`, *optional*): Prompts, unless an environment writes them.
        eval_dataset (`datasets.Dataset`, *optional*): Those of evaluations.
        dataset_name (`str`, *optional*): Where the prompts come from; `None` for the embedded task.
        measure (`Callable`, *optional*): Measures a folder, on a device, with what an embedded task holds out.
        before (`dict[str, float]`, *optional*): What it measured at the start; known on the main process.
        question (`str`, *optional*): What to ask the trained model on the command line.
        training (`Text`): What the training is called, where it is told of.
    """

    model: str
    reward_funcs: list[str | Callable]
    train_dataset: datasets.Dataset | None
    eval_dataset: datasets.Dataset | None
    dataset_name: str | None = None
    measure: Measure | None = None
    before: dict[str, float] | None = None
    question: str | None = None
    training: Text = Text("reinforcement learning")


def parse_arguments(
    config_class: type[RLConfig],
    embedded_defaults: dict[str, Any],
    arguments: Sequence[str] | None = None,
    script_class: type[ScriptArguments] = ScriptArguments,
    doc: str | None = None,
    recipe: str = "",
) -> tuple[ScriptArguments, RLConfig, ModelConfig]:
    """Parses flags and the yaml file of `--config`.

    Args:
        config_class (`type`): Settings of the trainer.
        embedded_defaults (`dict[str, Any]`): Defaults of the embedded task.
        arguments (`Sequence[str]`, *optional*): Command line. Unset: that of the process.
        script_class (`type`): The recipe's own arguments.
        doc (`str`, *optional*), recipe (`str`): See [`RecipeParser`].
    """
    arguments = separate_config(sys.argv[1:] if arguments is None else arguments)
    parser = RecipeParser(recipe, (script_class, config_class, ModelConfig), doc)
    given = parser.given_names(arguments)
    is_embedded = not given & {"model_name_or_path", "dataset_name"}
    if is_embedded:
        if given & {"reward_funcs", "reward_model_name_or_path"}:  # the weights belong to the task's rewards
            embedded_defaults = {name: value for name, value in embedded_defaults.items() if name != "reward_weights"}
        parser.set_defaults_with_config(**embedded_defaults)
    quiet.switch_bars_off()
    script, args, model = parser.parse(arguments, embedded_defaults if is_embedded else ())
    if isinstance(script.reward_funcs, str):  # a yaml file may name a single one without brackets
        script.reward_funcs = [script.reward_funcs]
    names = script.reward_funcs or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"reward_funcs is {names!r}. Give names, for example: reward_funcs: [length, format].")
    prepare_resume(args)
    return script, args, model


def prepare_task(
    script: ScriptArguments,
    args: RLConfig,
    model: ModelConfig,
    environment: bool = False,
    needs_rewards: bool = True,
) -> Task:
    """Loads the prompts, or builds the embedded task; every process calls it.

    Args:
        script ([`ScriptArguments`]), args ([`RLConfig`]), model (`ModelConfig`): From [`parse_arguments`].
        environment (`bool`): Whether an environment may write the prompts and give the rewards.
        needs_rewards (`bool`): Whether the algorithm learns from rewards.

    Raises:
        ValueError: If only one of model and data set is given, there is no reward, or the model is a .pth file.
    """
    rewards = [*(script.reward_funcs or []), *filter(None, [script.reward_model_name_or_path])]
    if not rewards and (script.dataset_name or "").startswith("reasoning_gym:"):
        rewards = ["reasoning_gym"]  # its tasks come with their scorer
    if model.model_name_or_path is None and script.dataset_name is None:
        return _embedded_task(script, args, rewards)
    _check_given(script, model, rewards or not needs_rewards, environment)
    args.model_init_kwargs = model_init_kwargs(model) | (args.model_init_kwargs or {})
    if not _LOADING & set(args.passed):
        note_made(args, "model_init_kwargs")
    return Task(
        model=model.model_name_or_path,
        reward_funcs=rewards,
        train_dataset=_load(script, script.dataset_name, script.dataset_train_split) if script.dataset_name else None,
        eval_dataset=_load_held_out(script) if will_evaluate(args) else None,
        dataset_name=script.dataset_name,
    )


def _check_given(script: ScriptArguments, model: ModelConfig, rewards: Any, environment: bool) -> None:
    path = model.model_name_or_path
    if path is None or (script.dataset_name is None and not environment):
        raise ValueError(
            f"model_name_or_path is {path!r} and dataset_name is {script.dataset_name!r}: give both, or neither for "
            "the embedded task."
        )
    if not rewards and not environment:
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


def _load_held_out(script: ScriptArguments) -> datasets.Dataset:
    source = script.eval_dataset_name or script.dataset_name
    with explaining_evaluation():
        if source is None:
            raise PromptError("An environment writes all prompts, and none are held out.")
        return _load(script, source, script.dataset_test_split or ("train" if script.eval_dataset_name else "test"))


def _embedded_task(script: ScriptArguments, args: RLConfig, rewards: list[str]) -> Task:
    folder = Path(args.output_dir) / START_FOLDER
    train, held_out = embedded_task.split_sums()

    def make_start() -> dict[str, float]:
        options = (script.sft_steps, script.sft_accuracy, args.seed, args.device)
        return {"accuracy": embedded_task.make_start(folder, *options)}

    return Task(
        model=str(folder),
        reward_funcs=rewards or embedded_task.REWARDS,
        train_dataset=embedded_task.as_dataset(train),
        eval_dataset=embedded_task.as_dataset(held_out),
        measure=_measure_sums,
        before=start_of_embedded_task(folder, make_start, _measure_sums, args),
        question=embedded_task.QUESTION,
    )


def _measure_sums(folder: str | Path, device: Any) -> dict[str, float]:
    return {"accuracy": embedded_task.measure_in_fresh_process(folder, device)}


def start_of_embedded_task(
    folder: Path,
    make_start: Callable[[], dict[str, float]],
    measure: Measure,
    args: RLConfig,
    training: Text = Task.training,
) -> dict[str, float] | None:
    """Makes the model to start from, or measures the one of a resumed run. The main process does, the others wait.

    Returns:
        `dict[str, float]`, *optional*: What was measured, on the main process.
    """
    before, state = None, PartialState()
    if state.is_main_process:
        with speaking(args.language):
            before = measure(folder, args.device) if args.resume_from_checkpoint else make_start()
        tell(args, "held-out accuracy before {training}: {accuracy:.1%}", training=training, **before)
    state.wait_for_everyone()
    return before


def make_trainer(
    trainer_class: type[RLTrainer], task: Task, args: RLConfig, model: ModelConfig, **options: Any
) -> RLTrainer:
    """The trainer for a task, with adapters if the model's flags ask for them, and further arguments of it."""
    trainer = trainer_class(
        model=task.model,
        reward_funcs=task.reward_funcs or None,
        args=args,
        train_dataset=task.train_dataset,
        eval_dataset=task.eval_dataset,
        peft_config=get_peft_config(model),
        **options,
    )
    trainer.run_log.says_where = False  # the recipe does, once the model is saved
    return trainer


def finish(trainer: Trainer, task: Task) -> dict[str, float] | None:
    """Saves model, tokenizer, card, reward curve and report; every process calls it.

    Returns:
        `dict[str, float]`, *optional*: What was measured of the saved model, on the main process of an embedded task.
    """
    output_dir = trainer.args.output_dir
    trainer.save_model(output_dir)
    after = None
    if trainer.is_world_process_zero():
        if task.before is not None:
            after = task.measure(output_dir, trainer.args.device)
            tell(trainer.args, "held-out accuracy after {training}: {accuracy:.1%}", training=task.training, **after)
            trainer.log({f"eval_{name}": value for name, value in _before_and_after(task, after).items()})
        _write_report(trainer, task)
    if trainer.args.push_to_hub:
        trainer.push_to_hub(dataset_name=task.dataset_name)
    return after


def _before_and_after(task: Task, after: dict[str, float] | None) -> dict[str, float | None]:
    before = task.before or {}
    return {
        f"{name}_{when}": values.get(name)
        for name in (before or {"accuracy": None})
        for when, values in (("before", before), ("after", after or {}))
    }


def _write_report(trainer: Trainer, task: Task) -> None:
    folder = Path(trainer.args.output_dir)
    with whole_file(folder / "README.md") as path:
        model_card(trainer, dataset_name=task.dataset_name).save(path)
    if any("reward" in log for log in trainer.state.log_history):
        plot_reward_curve(
            trainer.state.log_history,
            folder / "reward_curve.png",
            title=trainer.args.run_name or folder.resolve().name,
        )
    elif trainer.scorer.functions:
        tell(trainer.args, "no reward was logged (see logging_steps), so there is no reward curve")
    with whole_file(folder / STATE_FILE) as path:
        trainer.state.save_to_json(str(path))  # with the accuracies that were logged after training
    write_report(folder, language=trainer.args.language)


def print_result(
    trainer: Trainer,
    algorithm: str,
    task: Task,
    after: dict[str, float] | None,
    seconds: float,
    **further: Any,
) -> None:
    """On the main process, prints what to do next and the recipe's last line, one JSON object."""
    if not trainer.is_world_process_zero():
        return
    result = {"algorithm": algorithm}
    if task.measure is not None:
        result |= _before_and_after(task, after)
    result |= rewards_at_start_and_end(trainer.state.log_history)
    result |= further | {"seconds": round(seconds, 1), "output_dir": trainer.args.output_dir}
    folder = trainer.args.output_dir
    with speaking(trainer.args.language):
        print("\n".join(closing_lines(folder, folder, task.question)), flush=True)
    print(json.dumps(result), flush=True)


def tell(args: Any, text: str, **values: Any) -> None:
    """Prints a line in the `language` of the settings."""
    with speaking(args.language):
        print(said(text, **values), flush=True)


def rewards_at_start_and_end(log_history: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """The mean reward of the first and of the last tenth of the logs that have one."""
    rewards = [log["reward"] for log in log_history if "reward" in log]
    count = max(len(rewards) // 10, 1)
    ends = {"reward_start": rewards[:count], "reward_end": rewards[-count:]}
    return {name: round(fmean(some), 4) if some else None for name, some in ends.items()}
