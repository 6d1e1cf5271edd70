# SPDX-License-Identifier: Apache-2.0
"""Numbers as people write them: 3,680 and not 3.68e+03, 3 min 12 s and not 192.4; in the language that is spoken."""

import math
import re
from datetime import datetime
from typing import Any

from ..language import said

UNITS = (("{count} d", 86_400), ("{count} h", 3_600), ("{count} min", 60), ("{count} s", 1))
_DATE = re.compile(r"(\d+ \w+ \d{4}), (\d+:\d+)(.*)")  # as run.json has it
_SMALLEST = 1e-4  # below it, nobody counts the digits after the point


def number(value: Any) -> str:
    """A number with three digits that count, all digits before the point, and commas between thousands.

    Args:
        value (`Any`): Anything but a finite number is shown as `-`.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return "-"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    size = abs(value)
    if size < _SMALLEST:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    digits = max(0, 2 - math.floor(math.log10(size)))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def duration(seconds: float) -> str:
    """A time in its two largest units; below ten seconds with three digits that count."""
    if seconds < 10:
        return said("{count} s", count=number(seconds))
    rest, parts = round(seconds), []
    for unit, size in UNITS:
        count, rest = divmod(rest, size)
        if parts or count:
            parts.append((count, unit))
    return " ".join(said(unit, count=count) for count, unit in parts[:2] if count)


def date(now: datetime) -> str:
    """`1 December 2026, 05:30`."""
    return said("{now.day} {now:%B} {now.year}, {now:%H:%M}", now=now)


def date_again(written: str) -> str:
    """A date that was written in English; anything else as it is."""
    if not (found := _DATE.fullmatch(written)):
        return written
    try:
        return date(datetime.strptime(f"{found[1]} {found[2]}", "%d %B %Y %H:%M")) + found[3]
    except ValueError:
        return written


def percent(share: float) -> str:
    """A share with one digit after the point."""
    return f"{100 * share:.1f} %"


def counted(count: Any, thing: str) -> str:
    """`1 step`, `2,000 steps`."""
    text = f"{{count}} {thing}{'' if count == 1 else 's'}"
    return said(text, count=f"{count:,}" if isinstance(count, int) else count)


def millions(count: int) -> str:
    """A number of parameters: `28.98 M`, `1.5 B`."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return str(count)
