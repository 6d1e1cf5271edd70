# SPDX-License-Identifier: Apache-2.0
"""The `minimind-hf` command.

Each subcommand is one function that adds its arguments and one that runs them; what a subcommand needs is imported
when it runs, so `--help` stays quick. Errors of the user's making end in one line on stderr and exit status 1.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import __version__
from .commands import chat, evaluate, report


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments (`Sequence[str]`, *optional*): Arguments; unset, those of the process.

    Returns:
        `int`: Exit status: 0 on success, 1 for an error of the user's making (2 for a wrong usage, by argparse).
    """
    parser = argparse.ArgumentParser(prog="minimind-hf", description="Tools for MiniMind on transformers.")
    parser.add_argument("--version", action="version", version=f"minimind-hf {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add_command in _COMMANDS:
        add_command(commands)
    options = parser.parse_args(arguments)
    try:
        return options.run(options)
    except (OSError, ValueError) as error:
        print(f"minimind-hf {options.command}: error: {error}", file=sys.stderr)
        return 1


def _add_convert(commands: Any) -> None:
    parser = commands.add_parser(
        "convert",
        help="convert between MiniMind's .pth, a MiniMind folder and a plain Qwen3 folder",
        description="Converts a MiniMind .pth, or a MiniMind, Qwen3 or Qwen3-MoE folder, to another of these formats.",
    )
    parser.add_argument("source", type=Path, help="a .pth file or a model folder")
    parser.add_argument("destination", type=Path, help="the .pth file or folder to write")
    parser.add_argument("--to", metavar="TARGET", help="minimind, qwen3 or pth (default: by the destination's name)")
    parser.add_argument(
        "--config",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE|KEY=VALUE",
        help="config values that the tensors do not tell: a config.json and/or pairs such as num_experts_per_tok=2",
    )
    parser.add_argument("--tokenizer", type=Path, metavar="DIR", help="copy the tokenizer of this folder")
    parser.add_argument("--dtype", metavar="DTYPE", help="float32, float16 or bfloat16 (default: keep; .pth: float16)")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing destination")
    parser.set_defaults(run=_run_convert)


def _run_convert(options: argparse.Namespace) -> int:
    from transformers.utils.logging import disable_progress_bar

    from .models.convert import convert

    disable_progress_bar()
    written = convert(
        options.source,
        options.destination,
        to=options.to,
        config=parse_config_values(options.config),
        tokenizer=options.tokenizer,
        dtype=options.dtype,
        overwrite=options.overwrite,
    )
    print(f"wrote {written}")
    return 0


def parse_config_values(items: Sequence[str]) -> dict[str, Any]:
    """Merges JSON files and `key=value` pairs, the later ones winning.

    Args:
        items (`Sequence[str]`): Paths of JSON objects, or pairs whose value is JSON or else a string.

    Returns:
        `dict[str, Any]`: The merged values.

    Raises:
        ValueError: An item is neither a pair nor a readable JSON object.
    """
    values: dict[str, Any] = {}
    for item in items:
        if "=" in item and not Path(item).is_file():
            key, _, text = item.partition("=")
            values[key.strip()] = _json_or_text(text)
        else:
            values |= _read_json_object(Path(item))
    return values


def _json_or_text(text: str) -> Any:
    lowered = {"True": "true", "False": "false", "None": "null"}.get(text, text)
    try:
        return json.loads(lowered)
    except json.JSONDecodeError:
        return text


def _read_json_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"{path} is neither a file nor a KEY=VALUE pair.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a JSON {type(content).__name__}; a config is an object.")
    return content


def _add_estimate(commands: Any) -> None:
    parser = commands.add_parser(
        "estimate",
        help="say how much memory a run takes in each process",
        description="Estimates memory per process from a model's config; nothing is loaded. See docs/scaling.md.",
    )
    parser.add_argument("model", help="folder or name of the model")
    add = parser.add_argument
    add("--algorithm", default="grpo", choices=("grpo", "ppo"), help="ppo has a critic (default grpo)")
    add(
        "--mode",
        default="ddp",
        choices=("ddp", "zero1", "zero2", "zero3", "fsdp2"),
        help="what is divided among the processes (default ddp: nothing)",
    )
    add("--processes", type=int, default=1, metavar="N", help="how many train together (default 1)")
    add("--dtype", default="float32", choices=("float32", "bfloat16"), help="of weights (default float32)")
    add(
        "--lora_r",
        type=int,
        metavar="R",
        help="train adapters of this rank on all linear layers (default: no adapters)",
    )
    add("--no_reference", action="store_true", help="without a KL penalty, so without a reference model")
    add("--per_device_train_batch_size", type=int, metavar="N", help="as in the config (default: 12; ppo: 8)")
    add("--steps_per_generation", type=int, default=1, metavar="N", help="as in the config (default 1)")
    add("--mini_batch_size", type=int, metavar="N", help="of ppo, as in the config (default: 2)")
    add("--max_batch_rows", type=int, default=256, metavar="N", help="completions decoded at a time (default 256)")
    add("--num_generations", type=int, metavar="N", help="completions per prompt (default: 6; ppo: 1)")
    add("--max_prompt_length", type=int, default=128, metavar="N", help="tokens of a prompt (default 128)")
    add("--max_completion_length", type=int, default=256, metavar="N", help="tokens of a completion (default 256)")
    add("--max_tokens_per_microbatch", type=int, metavar="N", help="computed at a time (default: as training chooses)")
    add("--use_cpu", action="store_true", help="for a run on a CPU, which computes fewer tokens at a time")
    add("--trust_remote_code", action="store_true", help="run code that the model brings along")
    parser.set_defaults(run=_run_estimate)


def _run_estimate(options: argparse.Namespace) -> int:
    from transformers import AutoConfig

    from .paths import check_loadable

    check_loadable(options.model)

    from .estimate import GRPO_SIZES, PPO_SIZES, Setting, adapter_parameters, estimate, shape_of

    is_ppo = options.algorithm == "ppo"
    if options.mini_batch_size is not None and not is_ppo:
        raise ValueError(
            f"--mini_batch_size {options.mini_batch_size} is PPO's; GRPO updates on --per_device_train_batch_size "
            "completions at a time. Leave it out, or set --algorithm ppo."
        )
    if options.lora_r is not None and options.lora_r < 1:
        raise ValueError(f"--lora_r is {options.lora_r}; the rank of adapters is at least 1.")
    model, lora_r = _base_and_rank(options)
    defaults = PPO_SIZES if is_ppo else GRPO_SIZES
    sizes = {name: value for name, value in vars(options).items() if name in defaults and value is not None}
    sizes = defaults | sizes
    rollout = sizes["per_device_train_batch_size"] * options.steps_per_generation
    shape = shape_of(AutoConfig.from_pretrained(model, trust_remote_code=options.trust_remote_code))
    setting = Setting(
        algorithm=options.algorithm,
        mode=options.mode,
        processes=options.processes,
        dtype=options.dtype,
        trained=None if lora_r is None else adapter_parameters(shape, lora_r),
        reference=not options.no_reference,
        rows=sizes["mini_batch_size" if is_ppo else "per_device_train_batch_size"],
        rollout_rows=min(options.max_batch_rows, rollout),
        group=sizes["num_generations"],
        prompt=options.max_prompt_length,
        completion=options.max_completion_length,
        max_tokens=options.max_tokens_per_microbatch,
        on_cpu=options.use_cpu,
    )
    processes = "1 process" if options.processes == 1 else f"{options.processes} processes"
    assumed = [f"{options.algorithm}, {options.mode}, {processes}, {options.dtype}"]
    assumed += [f"{name} {value}" for name, value in sizes.items()]
    assumed += [f"prompts of {setting.prompt} and completions of {setting.completion} tokens"]
    print(f"{shape.parameters / 1e6:.1f} million parameters; assumed: {', '.join(assumed)}; MiB per process:")
    for name, value in estimate(shape, setting).rows():
        print(f"  {name:<10}{value / 2**20:>10.0f}")
    return 0


def _base_and_rank(options: argparse.Namespace) -> tuple[str, int | None]:
    """The model to estimate, and the rank of its adapters: a folder of adapters stands for them on their base."""
    from .paths import adapter_settings, holds_adapters

    if not holds_adapters(options.model):
        return options.model, options.lora_r
    adapters = adapter_settings(options.model)
    base, rank = adapters["base_model_name_or_path"], options.lora_r or adapters.get("r")
    if rank is None:
        raise ValueError(
            f"{options.model} holds adapters of the type {adapters.get('peft_type')}, which have no rank. Give the "
            "--lora_r of LoRA adapters that are about as large."
        )
    print(f"{options.model} holds adapters of {base}: taken as LoRA of rank {rank} on all linear layers.")
    return base, rank


_COMMANDS = (_add_convert, chat.add, evaluate.add, report.add, _add_estimate)


if __name__ == "__main__":
    sys.exit(main())
