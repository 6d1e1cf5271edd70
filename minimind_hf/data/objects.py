# SPDX-License-Identifier: Apache-2.0
"""Objects in the rows of a data set, each with its own fields.

Arrow gives all objects of a column the same fields, at any depth, and those that a row lacks become null there. Where
that would change what was written, [`Written`] stores a column of a JSON file as JSON text, which is read again
whenever a row is asked for. Of a data set that comes as Arrow (parquet, `save_to_disk`, made in memory) the null
fields are left out; one that was written as null cannot be told from one that another row brought along.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import datasets
import pyarrow as pa
from datasets.features.features import generate_from_arrow_type, register_feature


@dataclass
class Written:
    """Feature of a column whose values return as they were written.

    `datasets.Json` reads numbers inexactly (of 0.3 it makes 0.30000000000000004) and text that is JSON as JSON.
    """

    id: str | None = field(default=None, repr=False)
    dtype: ClassVar[str] = "string"
    pa_type: ClassVar[pa.DataType] = pa.string()
    _type: str = field(default="Written", init=False, repr=False)

    def __call__(self) -> pa.DataType:
        return self.pa_type

    def encode_example(self, value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    def decode_example(self, text: str | None, token_per_repo_id: Any = None) -> Any:
        return None if text is None else json.loads(text)


with warnings.catch_warnings():  # that registering is experimental
    warnings.simplefilter("ignore")
    register_feature(Written, "Written")


def feature_of(values: Sequence[Any]) -> Any:
    """The feature of a column read from JSON: Arrow's, unless it would change objects or make integers fractions, in
    lists too.

    Raises:
        pa.ArrowException: If the values hold no objects and are not of one type.
    """
    if {int, float} <= {type(value) for value in values} <= {int, float, type(None)}:
        return Written()
    try:
        array = pa.array(values)
    except pa.ArrowException:
        if any(map(_holds_objects, values)):
            return Written()
        raise
    is_nested = any(isinstance(value, (Mapping, list)) for value in values)
    if is_nested and any(
        _text(without_nulls(stored)) != _text(own) for stored, own in zip(array.to_pylist(), values, strict=True)
    ):
        return Written()
    return generate_from_arrow_type(array.type)


def shared_field_columns(rows: Any) -> frozenset[str]:
    """The columns of a `datasets.Dataset` in which all rows have the same fields; none of a list of rows."""
    if not isinstance(rows, datasets.Dataset):
        return frozenset()
    return frozenset(name for name, feature in rows.features.items() if _is_object(feature))


def own_fields(row: Mapping[str, Any], columns: frozenset[str]) -> Mapping[str, Any]:
    """The row, without the null fields of these columns."""
    return {name: without_nulls(value) if name in columns else value for name, value in row.items()}


def without_nulls(value: Any) -> Any:
    """A value without the null fields of its objects, at any depth; nulls in lists stay."""
    if isinstance(value, Mapping):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def _is_object(feature: Any) -> bool:
    if isinstance(feature, Mapping):
        return True
    if isinstance(feature, list):
        return _is_object(feature[0])
    return _is_object(feature.feature) if hasattr(feature, "feature") else False


def _holds_objects(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, list) and any(map(_holds_objects, value)))


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
