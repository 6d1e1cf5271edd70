# SPDX-License-Identifier: Apache-2.0
"""Examples of the documents, and what they are said to print."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def examples(page: str) -> list[str]:
    """The Python blocks of a page of docs/, in order."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def printed_lines(code: str) -> list[str]:
    """The comments that follow a print: what it is said to print."""
    lines, after_print = [], False
    for line in code.splitlines():
        if after_print and line.startswith("# "):
            lines.append(line.removeprefix("# "))
        else:
            after_print = line.lstrip().startswith("print(")
    return lines
