# SPDX-License-Identifier: Apache-2.0
"""From a file, a folder, a task or a hub name to a `datasets.Dataset`.

Local JSON, in a file or a folder, is read and checked here line by line, so that an error names the line and values
stay as they were written (Arrow's JSON reader turns strings that look like dates into timestamps). CSV is read by
`files`, which leaves cells as they are; `datasets` reads everything else.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from datasets.packaged_modules.csv.csv import Csv, CsvConfig
from datasets.packaged_modules.json.json import Json

from ..tasks import PREFIX as TASK_PREFIX
from .conversations import PromptError, check_same_kind, parse_row, prompt_column
from .files import (
    JSON_SUFFIXES,
    TABLES,
    check_source,
    check_table,
    read_csv,
    split_names,
    take_split,
    take_splits,
)
from .objects import feature_of
from .reasoning_gym import load_task

RowCheck = Callable[[dict[str, Any], str], object]


def load_prompts(
    source: str, *, name: str | None = None, split: str = "train", question_column: str | None = None
) -> datasets.Dataset:
    """Loads prompts.

    Args:
        source (`str`):
            A local `.jsonl`, `.json`, `.parquet` or `.csv` file, a folder (of data files, or one written by
            `Dataset.save_to_disk`), a task of reasoning-gym (`"reasoning_gym:chain_sum"`), or any name that
            `datasets.load_dataset` takes.
        name (`str`, *optional*): Configuration of the data set.
        split (`str`, *optional*, defaults to `"train"`):
            Split or slice, such as `"train[:100]"`. A single file is the split `train`.
        question_column (`str`, *optional*):
            For data without prompts: a column of strings. Each becomes the only user turn of a `prompt`.

    Returns:
        `datasets.Dataset`: One row per prompt.

    Raises:
        PromptError: If there is no such file, a line is not JSON or has no prompt, or the data set is empty.
    """
    if source.startswith(TASK_PREFIX):
        return load_task(source, split)
    check = _PromptCheck() if question_column is None else lambda row, where: None
    dataset = load_rows(source, check, name=name, split=split)
    return dataset if question_column is None else _ask(dataset, question_column)


def load_rows(source: str, check: RowCheck, *, name: str | None = None, split: str = "train") -> datasets.Dataset:
    """Loads a data set of texts, whole conversations or preferences.

    Args:
        source (`str`), name (`str`, *optional*), split (`str`): As for [`load_prompts`].
        check (`Callable`): Called with each row of a local JSON file and its place; raises if the row cannot be used.

    Returns:
        `datasets.Dataset`: The rows.

    Raises:
        PromptError: If there is no such file, a line is not a JSON object, or the data set is empty.
    """
    path = check_source(source)
    if path.is_file() and path.suffix.lower() in JSON_SUFFIXES:
        dataset = take_split(_read_rows([path], check), split)
    else:
        dataset = _load_with_datasets(path, source, name, split, check)
    if len(dataset) == 0:
        _blame_a_file(path)
        raise PromptError(f"The split {split!r} of {source!r} is empty. Give a data set with at least one row.")
    return dataset


def _ask(dataset: datasets.Dataset, question_column: str) -> datasets.Dataset:
    if question_column not in dataset.column_names:
        raise PromptError(
            f"question_column={question_column!r} is not a column of the data. Choose one of {dataset.column_names}."
        )
    questions = [str(value) if type(value) is int else value for value in dataset[question_column]]
    for index, question in enumerate(questions):
        if not isinstance(question, str) or not question:
            raise PromptError(
                f"row {index}: {question_column!r} is {question!r}, expected a string. Correct or remove the row."
            )
    prompts = [[{"role": "user", "content": question}] for question in questions]
    rest = dataset.remove_columns([c for c in (question_column, "prompt") if c in dataset.column_names])
    return rest.add_column("prompt", prompts) if rest.column_names else datasets.Dataset.from_dict({"prompt": prompts})


def _load_with_datasets(path: Path, source: str, name: str | None, split: str, check: RowCheck) -> datasets.Dataset:
    try:
        if path.is_file():
            check_table(path)
            return take_split(_read_table(path), split)
        if (path / "state.json").is_file():
            return take_split(datasets.load_from_disk(str(path)), split)
        if (path / "dataset_dict.json").is_file():
            return take_splits(datasets.load_from_disk(str(path)), split)
        return _load_by_name(path, source, name, split, check)
    except PromptError:
        raise
    except Exception as error:
        _blame_a_file(path)
        cause = _first_cause(error)
        raise PromptError(
            f"Cannot load the split {split!r} of {source!r}{f' (configuration {name!r})' if name else ''}: "
            f"{type(cause).__name__}: {cause}. Check the name, the split and the access to it."
        ) from error


def _read_table(path: Path) -> datasets.Dataset:
    if path.suffix.lower() == ".csv":
        return read_csv([path])
    return datasets.load_dataset("parquet", data_files={"train": str(path)}, split="train")


def _load_by_name(path: Path, source: str, name: str | None, split: str, check: RowCheck) -> datasets.Dataset:
    """A folder of data files, or a data set of the hub: `datasets` finds the files of each split."""
    builder = datasets.load_dataset_builder(source, name)
    files = getattr(builder.config, "data_files", None) or {}
    wanted = list(files) if split == "all" else [part for part in files if part in split_names(split)]
    if wanted and builder.info.features is None:
        if isinstance(builder, Csv):
            return take_splits({part: _read_csv_files(builder.config, files[part]) for part in wanted}, split)
        local = path.is_dir() and all(Path(file).suffix.lower() in JSON_SUFFIXES for p in wanted for file in files[p])
        if isinstance(builder, Json) and builder.config.field is None and local:
            return take_splits({part: _read_rows(map(Path, files[part]), check) for part in wanted}, split)
    return datasets.load_dataset(source, name, split=split)


def _read_csv_files(config: CsvConfig, files: list[str]) -> datasets.Dataset:
    options = {key: value for key, value in config.pd_read_csv_kwargs.items() if key != "chunksize"}
    return read_csv(datasets.DownloadManager().download_and_extract(list(files)), **options)


def _blame_a_file(path: Path) -> None:
    """If one file is why a folder could not be loaded, or has no rows, raises an error that names it and the line."""
    for file in sorted(path.rglob("*")) if path.is_dir() else []:
        if file.suffix.lower() in TABLES:
            check_table(file)
        elif file.suffix.lower() == ".jsonl" and not sum(1 for _ in _read_json(file)):
            raise PromptError(f"{file} is empty. Remove it, or give it at least one line.")


def _first_cause(error: BaseException) -> BaseException:
    """`datasets` wraps the reader's error in one that says nothing."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


class _PromptCheck:
    """Refuses rows without a prompt, and prompts of another kind than those before."""

    def __init__(self):
        self.column: str | None = None
        self.conversational: bool | None = None

    def __call__(self, row: dict[str, Any], where: str) -> None:
        if self.column is None:
            self.column = _column_of(row, where)
        parsed = parse_row(row, self.column, where)
        if self.conversational is None:
            self.conversational = parsed.conversational
        check_same_kind(parsed, self.conversational, where)


def _column_of(first_row: dict[str, Any], where: str) -> str:
    try:
        return prompt_column(first_row)
    except PromptError as error:
        raise PromptError(f"{where}: {error}") from error


def _read_rows(paths: Iterable[Path], check: RowCheck) -> datasets.Dataset:
    """The rows of JSON files."""
    rows, path = [], None
    for path in paths:
        for where, row in _read_json(path):
            if not isinstance(row, dict):
                raise PromptError(f"{where}: expected a JSON object, found {str(row)[:80]!r}. Correct or remove it.")
            check(row, where)
            rows.append(row)
    if not rows:
        raise PromptError(f"{path} is empty. Give a file with at least one row.")
    return _to_dataset(rows, path)


def _read_json(path: Path) -> Iterator[tuple[str, Any]]:
    """Yields (place, value): the lines of a jsonl file, or the elements of one JSON array."""
    with path.open("rb") as file:
        first = next((line.strip() for line in file if line.strip()), b"")
    if path.suffix.lower() == ".json" and first.removeprefix(b"\xef\xbb\xbf").startswith(b"["):
        values = _parse_json(path.read_bytes(), str(path))
        yield from ((f"{path}, element {i}", value) for i, value in enumerate(values))
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                where = f"{path}, line {number}"
                yield where, _parse_json(line, where)


def _parse_json(data: bytes, where: str) -> Any:
    try:
        value = json.loads(data.decode("utf-8-sig"))
        _check_storable(value, where)
        return value
    except RecursionError as error:
        raise PromptError(f"{where}: nested too deeply to be read. Correct or remove it.") from error
    except (ValueError, UnicodeDecodeError) as error:
        excerpt = data[:80].decode("utf-8", errors="replace").strip()
        raise PromptError(
            f"{where}: not valid JSON ({error}); it begins with {excerpt!r}. A line must be one JSON object in UTF-8."
        ) from error


def _check_storable(value: Any, where: str) -> None:
    """Refuses what JSON can hold but Arrow cannot: integers of more than 64 bits, halves of surrogate pairs."""
    if isinstance(value, dict):
        for key, item in value.items():
            _check_storable(key, where)
            _check_storable(item, where)
    elif isinstance(value, list):
        for item in value:
            _check_storable(item, where)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise PromptError(f"{where}: the integer {str(value)[:40]} has more than 64 bits. Write it as a string.")
    elif isinstance(value, str) and not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        raise PromptError(
            f"{where}: {value[:40]!r} holds half of a surrogate pair, which is not valid text. Correct it."
        )


def _to_dataset(rows: list[dict[str, Any]], path: Path) -> datasets.Dataset:
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [row.get(name) for row in rows] for name in names}
    features = {}
    for name, values in columns.items():
        try:
            features[name] = feature_of(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise PromptError(
                f"{path}: the values of {name!r} are not of one type in all rows ({error}). Convert them to one type, "
                "or remove the field."
            ) from error
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))
