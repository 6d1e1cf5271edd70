# SPDX-License-Identifier: Apache-2.0
"""What the page's scripts need, packed into text that is safe inside any element, and how large a page may become."""

import base64
import gzip
import json
from functools import cache
from importlib.resources import files
from typing import Any

LARGEST_PAGE = 2_000_000  # bytes
ROOM_FOR_ROWS = 900_000  # of them, for completions
_ASSETS = files("minimind_hf.reports") / "assets"


def packed(text: str) -> str:
    """A text as base64 of gzip, which `assets/unpack.js` reads; the same text gives the same letters."""
    return base64.b64encode(gzip.compress(text.encode("utf-8"), compresslevel=9, mtime=0)).decode("ascii")


def packed_json(value: Any) -> str:
    """A value as JSON, packed. A number that is not finite becomes `null`."""
    return packed(json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False))


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
