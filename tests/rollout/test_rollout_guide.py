# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/rollout-engines.md run in order and print what they say."""

import contextlib
import io
import re
from pathlib import Path

from tiny import make_policy, make_tokenizer, share_of_a

GUIDE = Path(__file__).parents[2] / "docs" / "rollout-engines.md"


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)


def printed_lines(code: str) -> list[str]:
    """The comments that follow a print: what it is said to print."""
    lines, after_print = [], False
    for line in code.splitlines():
        if after_print and line.startswith("# "):
            lines.append(line.removeprefix("# "))
        else:
            after_print = line.lstrip().startswith("print(")
    return lines


def test_examples_print_what_they_say(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    namespace = {"model": make_policy(), "tokenizer": make_tokenizer(), "reward": share_of_a}
    checked = 0
    for code in examples():
        if code.startswith("# lookup_engine.py"):
            (tmp_path / "lookup_engine.py").write_text(code, encoding="utf-8")
            assert len(code.splitlines()) <= 45
            continue
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(code, str(GUIDE), "exec"), namespace)
        lines = [line for line in output.getvalue().splitlines() if not line.startswith(("{", "\r", " "))]
        assert [line for line in lines if line in printed_lines(code)] == printed_lines(code)
        checked += len(printed_lines(code))
    assert checked == 3
