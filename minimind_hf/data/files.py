# SPDX-License-Identifier: Apache-2.0
"""What can be seen of data before it is read: that it is there, of a kind that is read, and holds rows.

The CSV reader takes a first row that is longer than the header for one that begins with an index, and moves every
value by one column; here that row is refused.
"""

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from .conversations import PromptError

JSON_SUFFIXES = (".jsonl", ".json", ".ndjson")
TABLES = {".parquet": "parquet", ".csv": "csv"}  # and the builder that reads them


def check_source(source: str) -> Path:
    """Refuses a name that can only be a file or a folder and is none that can be read.

    Args:
        source (`str`): As for [`load_prompts`].

    Returns:
        `Path`: The same as a path.

    Raises:
        PromptError: If there is no such file or folder, or a file of another kind.
    """
    path, known = Path(source), (*JSON_SUFFIXES, *TABLES)
    is_known = path.suffix.lower() in known
    if is_known and not path.exists():
        raise PromptError(f"There is no file {source!r} (looked in {Path.cwd()}). Check the path.")
    if path.is_file() and not is_known:
        raise PromptError(
            f"{source!r} is a file of a kind that is not read. Give one that ends in {', '.join(known)}, or a folder."
        )
    if not source or (not path.exists() and _has_the_shape_of_a_path(source)):
        raise PromptError(f"There is no folder {source!r} (looked in {Path.cwd()}). Check the path.")
    return path


def _has_the_shape_of_a_path(source: str) -> bool:
    """Names on the hub hold one slash at most."""
    return "://" not in source and (source.startswith((".", "/", "~")) or source.count("/") > 1)


def check_table(path: Path) -> None:
    """Refuses a CSV or parquet file without rows, or one whose rows do not fit its header.

    Raises:
        PromptError: Naming the file.
    """
    if path.stat().st_size == 0:
        raise PromptError(f"{path} is empty. Give a file with at least one row.")
    check = _check_csv if TABLES[path.suffix.lower()] == "csv" else _check_parquet
    check(path)


def _check_csv(path: Path) -> None:
    try:
        first_lines = pd.read_csv(path, header=None, nrows=2, dtype=str)
    except pd.errors.EmptyDataError as error:
        raise PromptError(f"{path} holds blank lines only. Give a file with a header and at least one row.") from error
    except (pd.errors.ParserError, UnicodeDecodeError) as error:
        raise PromptError(
            f"{path} is no CSV with a header and rows that are no longer than it ({str(error).strip()}). Put values "
            "that hold commas into double quotes, and write it in UTF-8."
        ) from error
    if len(first_lines) < 2:
        header = list(first_lines.iloc[0])
        raise PromptError(f"{path} holds a header only ({header}) and no row. Give a file with at least one row.")


def _check_parquet(path: Path) -> None:
    try:
        rows = pq.read_metadata(path).num_rows
    except (pa.ArrowInvalid, OSError) as error:
        raise PromptError(f"{path} is no parquet file, or not a whole one ({error}). Write it again.") from error
    if rows == 0:
        raise PromptError(f"{path} has no rows. Give a file with at least one.")
