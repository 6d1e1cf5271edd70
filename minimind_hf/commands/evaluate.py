# SPDX-License-Identifier: Apache-2.0
"""`minimind-hf eval`: how good one or more models are on held-out prompts."""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from .chat import add_model_options


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "eval",
        help="score models on held-out prompts",
        description="Lets models answer prompts and scores the answers. Give the model before and after training to "
        "see what it was worth: the difference is taken prompt by prompt. The last line is one JSON object.",
    )
    parser.add_argument(
        "models", nargs="+", metavar="MODEL", help="model folders or hub names; the first is compared to"
    )
    parser.add_argument("--dataset_name", required=True, metavar="FILE|NAME", help="prompts, as for training")
    parser.add_argument("--dataset_config", metavar="NAME", help="configuration of the data set")
    parser.add_argument("--split", default="train", help="split, e.g. 'test' or 'train[:200]' (default train)")
    parser.add_argument("--question_column", metavar="NAME", help="column of texts that become the user's turn")
    parser.add_argument(
        "--reward_funcs", nargs="+", default=[], metavar="REWARD", help="as for training: names, paths, reward models"
    )
    parser.add_argument(
        "--reward_weights", nargs="+", type=float, metavar="W", help="one weight per reward (default: 1)"
    )
    parser.add_argument(
        "--exact_match", nargs="?", const="answer", metavar="COLUMN", help="1 if the answer is the column's value"
    )
    parser.add_argument("--samples", type=int, default=1, metavar="N", help="completions per prompt (default 1)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, metavar="T", help="0: always the likeliest token (default 0.8)"
    )
    parser.add_argument(
        "--max_completion_length", type=int, default=256, metavar="N", help="cut completions here (default 256)"
    )
    parser.add_argument(
        "--thinking_ratio",
        type=float,
        metavar="P",
        help="share of the prompts that think (default: as the models were trained, by their run.json; else 0.9)",
    )
    parser.add_argument("--batch_size", type=int, default=64, metavar="N", help="prompts at a time (default 64)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the sampling (default 0)")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="write results.json and the completions there")
    add_model_options(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if not options.reward_funcs and not options.exact_match:
        raise ValueError("There is nothing to score by. Give --reward_funcs, or --exact_match COLUMN.")
    if len(set(options.models)) < len(options.models):
        raise ValueError(f"A model is named twice: {options.models}.")

    from rich.console import Console
    from transformers.utils.logging import disable_progress_bar

    from ..data import load_prompts
    from ..data.conversations import NOT_PASSED_ON
    from ..evaluation import EvalSettings, ExactMatch, as_table, summary, thinking_ratio_of
    from ..inference import usable_device
    from ..paths import check_loadable
    from ..rewards import RewardScorer

    disable_progress_bar()
    for path in options.models:
        check_loadable(path)
    usable_device(options.device)
    settings = EvalSettings(
        options.samples,
        options.temperature,
        options.max_completion_length,
        thinking_ratio_of(options.models) if options.thinking_ratio is None else options.thinking_ratio,
        options.seed,
        options.batch_size,
    )
    rows = load_prompts(
        options.dataset_name,
        name=options.dataset_config,
        split=options.split,
        question_column=options.question_column,
    )
    functions = [*options.reward_funcs, *([ExactMatch(options.exact_match)] if options.exact_match else [])]
    scorer = RewardScorer(
        functions, options.reward_weights, model_kwargs={"trust_remote_code": options.trust_remote_code}
    )
    scorer.check_columns([name for name in rows.column_names if name not in NOT_PASSED_ON])
    if options.output:
        _check_writable(options.output)
    answers: list[Any] = []
    try:
        for path, name in _named(options.models):
            answers.append(_answer(path, name, rows, scorer, settings, options))
    finally:  # if a later model fails, what the others said is not lost
        scorer.close()
        if answers:
            Console().print(as_table(answers, f"{len(rows)} prompts x {settings.samples}"))
            result = {"dataset": options.dataset_name, "prompts": len(rows), "settings": vars(settings)}
            result["results"] = summary(answers)
            if options.output:
                _write(options.output, result, answers)
            print(json.dumps(result, ensure_ascii=False))
    return 0


def _check_writable(folder: Path) -> None:
    """Makes the folder and writes to it, so that an error comes before hours of answers and not after."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"--output {folder}: no folder that can be written to ({error}). Name another.") from error


def _named(paths: list[str]) -> list[tuple[str, str]]:
    """Short names where they tell the models apart."""
    short = [Path(path).name or path for path in paths]
    return list(zip(paths, short if len(set(short)) == len(short) else paths, strict=True))


def _answer(path: str, name: str, rows: Any, scorer: Any, settings: Any, options: argparse.Namespace) -> Any:
    from rich.console import Console
    from rich.progress import Progress

    from ..evaluation import answer_prompts
    from ..inference import load_for_inference

    model, tokenizer = load_for_inference(
        path, device=options.device, dtype=options.dtype, trust_remote_code=options.trust_remote_code
    )
    scorer.to(model.device)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(name, total=len(rows))
        return answer_prompts(
            name, model, tokenizer, rows, scorer, settings, lambda count: progress.advance(bar, count)
        )


def _write(folder: Path, result: dict[str, Any], answers: list[Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(result, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    for one in answers:
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in one.completions)
        name = one.name.replace("/", "_")
        (folder / f"completions_{name}.jsonl").write_text("".join(lines), encoding="utf-8")
