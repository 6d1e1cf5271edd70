# SPDX-License-Identifier: Apache-2.0
"""What the page's scripts need, packed into text that is safe inside any element, and how much room its rows have."""

import base64
import gzip
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

ROOM_FOR_ROWS = 700_000  # bytes of a page, for completions
ROOM_FOR_TOKENS = 300_000  # for completions token by token
_ASSETS = files("minimind_hf.reports") / "assets"


def packed(text: str) -> str:
    """A text as base64 of gzip, which `assets/unpack.js` reads; the same text gives the same letters."""
    return base64.b64encode(gzip.compress(text.encode("utf-8"), compresslevel=9, mtime=0)).decode("ascii")


def packed_json(value: Any) -> str:
    """A value as JSON, packed. A number that is not finite becomes `null`."""
    return packed(json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False))


def fitted(rows: Sequence[dict[str, Any]], room: int) -> tuple[str, list[dict[str, Any]]]:
    """Rows of a run, packed, and which of them there is room for: steps are left out evenly, the last one stays.

    Args:
        rows (`Sequence[dict]`): Each with its `step`.
        room (`int`): Bytes.

    Returns:
        `tuple[str, list[dict]]`: Nothing packed if there are no rows.
    """
    if not rows:
        return "", []
    steps = sorted({row["step"] for row in rows if isinstance(row["step"], int)})
    keep_every = 1
    while True:
        left = set(steps[::-1][::keep_every])
        kept = [row for row in rows if row["step"] in left or not isinstance(row["step"], int)]
        data = packed_json(kept)
        if len(data) <= room or len(left) <= 1:
            break
        keep_every = max(keep_every + 1, keep_every * len(data) // room)
    while len(data) > room and len(kept) > 1:  # a single step that is too large
        kept = kept[: max(1, len(kept) * room // (2 * len(data)))]
        data = packed_json(kept)
    return data, kept


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None  # which NaN is not, either
    if isinstance(value, dict):
        return {str(key): _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


@cache
def plotting_library() -> str:
    """Bokeh's script, packed."""
    from bokeh.resources import Resources  # a third of a second, and only a page needs it

    resources = Resources("inline", components=["bokeh", "bokeh-api"], minified=True)
    return packed("\n".join(resources.js_raw[: len(resources.components)]))  # without what it prints to the console


@cache
def asset(name: str) -> str:
    """A script or style sheet of the page."""
    return (_ASSETS / name).read_text(encoding="utf-8")
