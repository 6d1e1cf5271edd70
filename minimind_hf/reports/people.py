# SPDX-License-Identifier: Apache-2.0
"""Numbers as people write them: 3,680 and not 3.68e+03, 3 min 12 s and not 192.4."""

import math
from typing import Any

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_SMALLEST = 1e-4  # below it, digits behind the point are counted by nobody


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
        return f"{number(seconds)} s"
    rest, parts = round(seconds), []
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        if parts or count:
            parts.append((count, unit))
    return " ".join(f"{count} {unit}" for count, unit in parts[:2] if count)


def percent(share: float) -> str:
    """A share with one digit behind the point."""
    return f"{100 * share:.1f} %"


def counted(count: int, thing: str) -> str:
    """`1 step`, `200 steps`."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def millions(count: int) -> str:
    """A number of parameters: `28.98 M`, `1.5 B`."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return str(count)
