# SPDX-License-Identifier: Apache-2.0
"""`minimind-hf eval`: evaluates one or more models on held-out prompts."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset
from rich.console import Console
from rich.progress import Progress
from transformers.utils.logging import disable_progress_bar

from ..data import load_prompts
from ..data.conversations import NOT_PASSED_ON
from ..evaluation import Answers, EvalSettings, ExactMatch, answer_prompts, as_table, summary, thinking_ratio_of
from ..flags import ModelFlags, flag, make_parser, taken
from ..inference import load_for_inference, usable_device
from ..paths import check_loadable
from ..rewards import RewardScorer


@dataclass
class EvalFlags:
    """Flags of the command, besides those of the models and their answers."""

    dataset_name: str = flag(MISSING, "prompts, as for training", metavar="FILE|NAME")
    dataset_config: str | None = flag(None, "configuration of the data set", metavar="NAME")
    split: str = flag("train", "split, e.g. 'test' or 'train[:200]' (default %(default)s)")
    question_column: str | None = flag(None, "column whose texts become the user turn", metavar="NAME")
    reward_funcs: list[str] = flag(list, "as for training: names, paths, reward models", metavar="REWARD")
    reward_weights: list[float] | None = flag(None, "one weight per reward (default: 1)", metavar="W")
    exact_match: str | None = flag(
        None, "reward of 1 if the answer equals the value in this column", nargs="?", const="answer", metavar="COLUMN"
    )
    output: Path | None = flag(None, "write results.json and the completions to this folder", metavar="FOLDER")

    def __post_init__(self):
        if not self.reward_funcs and not self.exact_match:
            raise ValueError("Nothing to evaluate with: set --reward_funcs, or --exact_match COLUMN.")


def main(arguments: Sequence[str]) -> int:
    parser = make_parser(
        "eval",
        "Lets models answer prompts and rates the answers with rewards. Pass the model before and after training to "
        "measure the gain: the difference is taken prompt by prompt. The last line is one JSON object.",
        EvalFlags,
        EvalSettings,
        ModelFlags,
    )
    parser.add_argument(
        "models", nargs="+", metavar="MODEL", help="model folders or Hub names; the others are compared with the first"
    )
    parser.set_defaults(thinking_ratio=None)
    options = parser.parse_args(arguments)
    flags, of_models = taken(EvalFlags, options), taken(ModelFlags, options)
    models = options.models
    if len(set(models)) < len(models):
        raise ValueError(f"A model is named twice: {models}. Name each model once.")
    disable_progress_bar()
    for path in models:
        check_loadable(path)
    usable_device(of_models.device)
    if options.thinking_ratio is None:
        options.thinking_ratio = thinking_ratio_of(models)
    settings = taken(EvalSettings, options)
    rows = load_prompts(
        flags.dataset_name, name=flags.dataset_config, split=flags.split, question_column=flags.question_column
    )
    functions = [*flags.reward_funcs, *([ExactMatch(flags.exact_match)] if flags.exact_match else [])]
    scorer = RewardScorer(
        functions, flags.reward_weights, model_kwargs={"trust_remote_code": of_models.trust_remote_code}
    )
    scorer.check_columns([name for name in rows.column_names if name not in NOT_PASSED_ON])
    if flags.output:
        _check_writable(flags.output)
    answers: list[Answers] = []
    try:
        for path, name in _named(models):
            answers.append(_answer(path, name, rows, scorer, settings, of_models))
    finally:  # if a later model fails, the answers of the others are not lost
        scorer.close()
        if answers:
            Console().print(as_table(answers, f"{len(rows)} prompts x {settings.samples}"))
            result = {"dataset": flags.dataset_name, "prompts": len(rows), "settings": vars(settings)}
            result["results"] = summary(answers)
            if flags.output:
                _write(flags.output, result, answers)
            print(json.dumps(result, ensure_ascii=False))
    return 0


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
    path: str, name: str, rows: Dataset, scorer: RewardScorer, settings: EvalSettings, of_models: ModelFlags
) -> Answers:
    model, tokenizer = load_for_inference(path, **vars(of_models))
    scorer.to(model.device)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(name, total=len(rows))
        return answer_prompts(
            name, model, tokenizer, rows, scorer, settings, lambda count: progress.advance(bar, count)
        )


def _write(folder: Path, result: dict[str, Any], answers: list[Answers]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(result, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    for one in answers:
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in one.completions)
        name = one.name.replace("/", "_")
        (folder / f"completions_{name}.jsonl").write_text("".join(lines), encoding="utf-8")
