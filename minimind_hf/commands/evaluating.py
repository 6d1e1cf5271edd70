# SPDX-License-Identifier: Apache-2.0
"""What `minimind-hf eval` does, apart from its command line: answers, rewards, tables, files."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from rich.console import Console
from rich.progress import Progress
from transformers import AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from ..agent import Agent
from ..agent.loading import load_environment, load_tools
from ..data import load_prompts
from ..data.conversations import NOT_PASSED_ON
from ..data.loading import load_rows
from ..evaluation import (
    Answers,
    EpisodeSettings,
    EvalSettings,
    ExactMatch,
    agent_for,
    answer_prompts,
    as_table,
    changes_table,
    summary,
)
from ..evaluation.answers import EPISODE_ARGUMENTS
from ..flags import ModelFlags
from ..inference import load_for_inference, usable_device
from ..paths import check_loadable, check_tokenizer_files
from ..rewards import RewardScorer
from ..tasks import PREFIX as TASK_PREFIX
from .eval_flags import NUM_PROMPTS, EvalFlags


def check_models(models: Sequence[str], of_models: ModelFlags) -> None:
    """Refuses models that cannot be loaded, before any of them is.

    Raises:
        ValueError: If one is named twice or is none, or the device is not there.
    """
    if len(set(models)) < len(models):
        raise ValueError(f"A model is named twice: {models}. Name each model once.")
    disable_progress_bar()
    for path in models:
        check_loadable(path)
    usable_device(of_models.device)


def evaluate(
    models: Sequence[str], flags: EvalFlags, settings: EvalSettings, episodes: EpisodeSettings, of_models: ModelFlags
) -> None:
    """Lets the models answer, and prints and writes the results.

    Args:
        models (`Sequence[str]`): Folders or names; the others are compared with the first.
        flags, settings, episodes, of_models: From the command line.
    """
    agents = _agents(models, flags, episodes, settings, of_models)
    rows = _rows(flags, agents[0])
    scorer = _scorer(flags, agents[0], of_models)
    given = EPISODE_ARGUMENTS if agents[0] is not None else ()
    scorer.check_columns([name for name in rows.column_names if name not in NOT_PASSED_ON], given)
    if flags.output:
        _check_writable(flags.output)
    answers: list[Answers] = []
    try:
        for (path, name), agent in zip(_named(models), agents, strict=True):
            answers.append(_answer(path, name, rows, scorer, settings, of_models, agent, episodes))
    finally:  # if a later model fails, the answers of the others are not lost
        scorer.close()
        for agent in filter(None, agents):
            agent.close()
        if answers:
            played = None if agents[0] is None else episodes
            _report(answers, flags, settings, played, len(rows))


def _agents(
    models: Sequence[str],
    flags: EvalFlags,
    episodes: EpisodeSettings,
    settings: EvalSettings,
    of_models: ModelFlags,
) -> list[Agent | None]:
    """The agent of each model, made before any model is loaded: a chat template may not do for episodes."""
    if not flags.tools and flags.environment is None:
        return [None] * len(models)
    tools = load_tools(flags.tools)
    environment = None if flags.environment is None else load_environment(flags.environment)
    for path in models:
        check_tokenizer_files(path)
    tokenizers = [
        AutoTokenizer.from_pretrained(path, trust_remote_code=of_models.trust_remote_code) for path in models
    ]
    return [agent_for(tokenizer, tools, environment, episodes, settings) for tokenizer in tokenizers]


def _rows(flags: EvalFlags, agent: Agent | None) -> Dataset:
    """The rows of the data set; where there are environments, which may write the prompts, also rows without one."""
    if flags.dataset_name is None:
        return agent.empty_prompts(flags.num_prompts or NUM_PROMPTS)
    where = {"name": flags.dataset_config, "split": flags.split}
    has_prompts = flags.question_column is not None or flags.dataset_name.startswith(TASK_PREFIX)
    if flags.environment is None or has_prompts:
        return load_prompts(flags.dataset_name, question_column=flags.question_column, **where)
    return load_rows(flags.dataset_name, lambda row, place: None, **where)


def _scorer(flags: EvalFlags, agent: Agent | None, of_models: ModelFlags) -> RewardScorer:
    functions = [*flags.reward_funcs, *([ExactMatch(flags.exact_match)] if flags.exact_match else [])]
    added = [] if agent is None else agent.reward_functions(are_only=not functions)
    if not functions and not added:
        raise ValueError(
            f"The environment {flags.environment} gives no reward: it has neither get_reward nor respond. Add one, or "
            "set --reward_funcs or --exact_match COLUMN."
        )
    weights = flags.reward_weights and [*flags.reward_weights, *[1.0] * len(added)]
    return RewardScorer([*functions, *added], weights, model_kwargs={"trust_remote_code": of_models.trust_remote_code})


def _check_writable(folder: Path) -> None:
    """Creates the folder and writes to it, so that an error comes before hours of work and not after."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"--output {folder} is not a writable folder ({error}). Choose another.") from error


def _named(paths: list[str]) -> list[tuple[str, str]]:
    """Pairs each path with a short name, if short names are unique."""
    short = [Path(path).name or path for path in paths]
    return list(zip(paths, short if len(set(short)) == len(short) else paths, strict=True))


def _answer(
    path: str,
    name: str,
    rows: Dataset,
    scorer: RewardScorer,
    settings: EvalSettings,
    of_models: ModelFlags,
    agent: Agent | None,
    episodes: EpisodeSettings,
) -> Answers:
    model, tokenizer = load_for_inference(path, **vars(of_models))
    scorer.to(model.device)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(name, total=len(rows))

        def advance(count: int) -> None:
            progress.advance(bar, count)

        return answer_prompts(name, model, tokenizer, rows, scorer, settings, advance, agent, episodes)


def _report(
    answers: list[Answers], flags: EvalFlags, settings: EvalSettings, episodes: EpisodeSettings | None, num_rows: int
) -> None:
    """Prints the tables and, as the last line, the results; `episodes` is unset if none were played."""
    what = "" if episodes is None else " episodes"
    console = Console()
    console.print(as_table(answers, f"{num_rows} prompts x {settings.samples}{what}"))
    for one in answers[1:]:
        if (changes := changes_table(answers[0], one, flags.changed)) is not None:
            console.print(changes)
    result = {"dataset": flags.dataset_name, "prompts": num_rows, "settings": vars(settings)}
    if episodes is not None:
        result |= {"tools": flags.tools, "environment": flags.environment, "episodes": vars(episodes)}
    result["results"] = summary(answers)
    if flags.output:
        _write(flags.output, result, answers)
    print(json.dumps(result, ensure_ascii=False))


def _write(folder: Path, result: dict[str, Any], answers: list[Answers]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(result, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    for one in answers:
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in one.completions)
        name = one.name.replace("/", "_")
        (folder / f"completions_{name}.jsonl").write_text("".join(lines), encoding="utf-8")
