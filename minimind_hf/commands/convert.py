# SPDX-License-Identifier: Apache-2.0
"""`minimind-hf convert`: converts between MiniMind's .pth, a MiniMind folder and a plain Qwen3 folder."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..flags import flag, make_parser, switch, taken


@dataclass
class ConvertFlags:
    """Flags of the command, named as the arguments of [`convert`]."""

    to: str | None = flag(None, "minimind, qwen3 or pth (default: from the name of the destination)", metavar="TARGET")
    config: list[str] = flag(
        list,
        "config values that the tensors do not determine: a config.json and/or pairs such as num_experts_per_tok=2",
        action="extend",
        metavar="FILE|KEY=VALUE",
    )
    tokenizer: Path | None = flag(None, "copy the tokenizer from this folder", metavar="DIR")
    dtype: str | None = flag(None, "float32, float16 or bfloat16 (default: keep; .pth: float16)", metavar="DTYPE")
    overwrite: bool = switch("replace an existing destination")


def main(arguments: Sequence[str]) -> int:
    parser = make_parser(
        "convert",
        "Converts a MiniMind .pth, or a MiniMind, Qwen3 or Qwen3-MoE folder, to another of these formats.",
        ConvertFlags,
    )
    parser.add_argument("source", type=Path, help="a .pth file or a model folder")
    parser.add_argument("destination", type=Path, help="the .pth file or folder to write")
    options = parser.parse_args(arguments)
    flags = taken(ConvertFlags, options)

    from transformers.utils.logging import disable_progress_bar  # imported here to keep --help fast

    from ..models.convert import Checkpoint, convert

    def tell(checkpoint: Checkpoint) -> None:
        _tell(options.source, checkpoint, names_tokenizer=options.destination.suffix != ".pth")

    disable_progress_bar()
    settings = vars(flags) | {"config": parse_config_values(flags.config)}
    print(f"wrote {convert(options.source, options.destination, **settings, on_read=tell)}")
    return 0


def _tell(source: Path, checkpoint: Any, names_tokenizer: bool) -> None:
    """Prints what was read and what was assumed, and warns of a tokenizer that does not fit, or is missing."""
    from ..models.described import as_short, described, tokenizer_faults

    print(f"{source}: {described(checkpoint.config, checkpoint.weights)}")
    if checkpoint.assumed:
        values = ", ".join(f"{name} {as_short(value)}" for name, value in checkpoint.assumed.items())
        print(f"not in the file, assumed: {values} (other values: --config KEY=VALUE)")
    faults = tokenizer_faults(checkpoint.config, checkpoint.tokenizer_files, is_exact=source.is_file())
    if names_tokenizer and not checkpoint.tokenizer_files:
        faults.append(f"{source} has no tokenizer, and nothing runs without one. Copy it with --tokenizer DIR.")
    for fault in faults:
        print(f"warning: {fault}", file=sys.stderr)


def parse_config_values(items: Sequence[str]) -> dict[str, Any]:
    """Merges JSON files and `key=value` pairs; later ones override earlier ones.

    Args:
        items (`Sequence[str]`): Paths of JSON files, or pairs whose value is JSON or a plain string.

    Returns:
        `dict[str, Any]`: The merged values.

    Raises:
        ValueError: If an item is neither a pair nor a readable JSON object.
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
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a JSON {type(content).__name__}, but a config must be an object.")
    return content
