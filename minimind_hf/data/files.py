# SPDX-License-Identifier: Apache-2.0
"""Checks of data before it is read (it exists, its format is known, it has rows), and splits of what has no splits.

The cells of a CSV are text, and only an empty one is missing: `007`, `0.50`, `true` and `NA` stay what they are. A
column of nothing but integers is read as integers, unless it is one of texts, such as `prompt`. The CSV reader takes a
first row that is longer than the header for a row that begins with an index, and moves every value by one column. Such
a row is refused here.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from .conversations import PromptError

JSON_SUFFIXES = (".jsonl", ".json", ".ndjson")
TABLES = (".parquet", ".csv")
_TEXTS = {"prompt", "text", "completion", "chosen", "rejected"}
_INTEGER = re.compile(r"0|-?[1-9]\d{0,17}")  # that fits 64 bits, and is written as Python writes it


def check_source(source: str) -> Path:
    """Refuses a name that can only be a file or a folder but cannot be read as one.

    Args:
        source (`str`): As for [`load_prompts`].

    Returns:
        `Path`: The source as a path.

    Raises:
        PromptError: If there is no such file or folder, or the format of the file is unknown.
    """
    path, known = Path(source), (*JSON_SUFFIXES, *TABLES)
    is_known = path.suffix.lower() in known
    if is_known and not path.exists():
        raise PromptError(f"There is no file {source!r} (looked in {Path.cwd()}). Check the path.")
    if path.is_file() and not is_known:
        raise PromptError(
            f"The format of {source!r} is not supported. Give a file that ends in {', '.join(known)}, or a folder."
        )
    if not source or (not path.exists() and _has_the_shape_of_a_path(source)):
        raise PromptError(f"There is no folder {source!r} (looked in {Path.cwd()}). Check the path.")
    return path


def _has_the_shape_of_a_path(source: str) -> bool:
    """Hub names have at most one slash."""
    return "://" not in source and (source.startswith((".", "/", "~")) or source.count("/") > 1)


def check_table(path: Path) -> None:
    """Refuses a CSV or parquet file without rows, or one whose rows do not fit its header.

    Raises:
        PromptError: Naming the file.
    """
    if path.stat().st_size == 0:
        raise PromptError(f"{path} is empty. Give a file with at least one row.")
    check = _check_csv if path.suffix.lower() == ".csv" else _check_parquet
    check(path)


def _check_csv(path: Path) -> None:
    try:
        first_lines = pd.read_csv(path, header=None, nrows=2, dtype=str)
    except pd.errors.EmptyDataError as error:
        raise PromptError(f"{path} has only blank lines. Give a file with a header and at least one row.") from error
    except (pd.errors.ParserError, UnicodeDecodeError) as error:
        raise PromptError(
            f"{path} is not a CSV file in which no row is longer than the header ({str(error).strip()}). Put values "
            "that contain commas in double quotes, and save it as UTF-8."
        ) from error
    if len(first_lines) < 2:
        header = list(first_lines.iloc[0])
        raise PromptError(f"{path} has a header ({header}) but no rows. Give a file with at least one row.")


def _check_parquet(path: Path) -> None:
    try:
        rows = pq.read_metadata(path).num_rows
    except (pa.ArrowInvalid, OSError) as error:
        raise PromptError(f"{path} is not a complete parquet file ({error}). Write it again.") from error
    if rows == 0:
        raise PromptError(f"{path} has no rows. Give a file with at least one.")


def read_csv(paths: Iterable[str | Path], **options: Any) -> datasets.Dataset:
    """Reads CSV files with the same columns.

    Args:
        paths (`Iterable[str | Path]`): The files.
        options: Arguments of `pandas.read_csv`.
    """
    options |= {"dtype": str, "keep_default_na": False, "na_values": [""]}
    table = pd.concat([pd.read_csv(path, **options) for path in paths], ignore_index=True)
    columns = {str(name): table[name] for name in table.columns}
    return datasets.Dataset.from_dict({name: _cells(values, name in _TEXTS) for name, values in columns.items()})


def _cells(column: pd.Series, is_text: bool) -> list[str | None] | list[int | None]:
    cells = [cell if isinstance(cell, str) else None for cell in column]
    if not is_text and any(cells) and all(cell is None or _INTEGER.fullmatch(cell) for cell in cells):
        return [None if cell is None else int(cell) for cell in cells]
    return cells


def split_names(split: str) -> list[str]:
    """The splits that a specification such as `"train[:10]+test"` names."""
    return [part.partition("[")[0].strip() for part in split.split("+")]


def take_splits(parts: Mapping[str, datasets.Dataset], split: str) -> datasets.Dataset:
    """Returns the rows of a split, of slices such as `"train[50%:]"`, or of several, `"train+test"`.

    Raises:
        PromptError: If there is no such split, or a slice is not valid.
    """
    if split == "all":
        return datasets.concatenate_datasets(list(parts.values()))
    try:
        wanted = datasets.ReadInstruction.from_spec(split).to_absolute({name: len(parts[name]) for name in parts})
    except (ValueError, AssertionError) as error:
        raise PromptError(
            f"The split {split!r} was asked for, but the data has the splits {list(parts)}, and slices of them such "
            f"as '{next(iter(parts))}[:100]'."
        ) from error
    chosen = []
    for one in wanted:
        part = parts[one.splitname]
        rows = range(one.from_ or 0, len(part) if one.to is None else one.to)
        chosen.append(part if len(rows) == len(part) else part.select(rows))
    return chosen[0] if len(chosen) == 1 else datasets.concatenate_datasets(chosen)


def take_split(dataset: datasets.Dataset, split: str, name: str = "train") -> datasets.Dataset:
    """Returns the rows of a split, or a slice such as `"train[:100]"`, of a data set that is one split by itself.

    Args:
        dataset (`datasets.Dataset`): A single file, a saved `Dataset` or the rows of a task.
        split (`str`): What was asked for.
        name (`str`): The split that `dataset` is.

    Raises:
        PromptError: If `split` is another split, or not a valid slice.
    """
    try:
        return take_splits({name: dataset}, split)
    except PromptError as error:
        raise PromptError(
            f"A single file, a saved `Dataset` or a task has only the split {name!r} (or a slice such as "
            f"'{name}[:100]'), but the split {split!r} was asked for."
        ) from error


def is_stream(dataset: Any) -> bool:
    """Whether a data set has rows in an order, but none by number."""
    return isinstance(dataset, (datasets.IterableDataset, torch.utils.data.IterableDataset))


def check_rows(dataset: Any) -> Any:
    """Refuses what is not a data set with rows by number, before its prompts are checked.

    Returns:
        `datasets.Dataset` or `Sequence[Mapping]`: The rows, as Python objects.

    Raises:
        PromptError: If it is a stream, several splits, empty, or a row is not a mapping.
    """
    kind = type(dataset).__name__
    if is_stream(dataset):
        raise PromptError(
            f"{kind} is a stream, without rows by number. Give it to a trainer as it is, or load it without "
            "streaming=True, or store it with `datasets.Dataset.from_generator`."
        )
    if isinstance(dataset, Mapping):
        raise PromptError(
            f"A {kind} holds several splits ({list(dataset)}). Pass one of them, such as dataset['train']."
        )
    if not isinstance(dataset, (datasets.Dataset, Sequence)) or isinstance(dataset, str):
        raise PromptError(
            f"Expected a `datasets.Dataset` or a list of dicts, not a {kind}. Use `load_prompts` for files and names."
        )
    if len(dataset) == 0:
        raise PromptError(f"The data set ({kind}) is empty. Give a data set with at least one prompt.")
    if isinstance(dataset, datasets.Dataset):
        return dataset.with_format(None)
    for index, row in enumerate(dataset):
        if not isinstance(row, Mapping):
            raise PromptError(f"row {index} is a {type(row).__name__}, expected a dict such as {{'prompt': '...'}}.")
    return dataset
