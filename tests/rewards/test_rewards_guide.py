# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/rewards.md run in order and print what they say."""

import contextlib
import io
import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "rewards.md"


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


@pytest.fixture
def folder(tmp_path, monkeypatch, make_classifier, tokenizer):
    model_path = tmp_path / "path" / "to" / "my-reward-model"
    make_classifier().save_pretrained(model_path)
    tokenizer.save_pretrained(model_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_examples_print_what_they_say(folder):
    namespace = {}
    checked = 0
    for code in examples():
        if code.startswith("# my_rewards.py"):
            (folder / "my_rewards.py").write_text(code, encoding="utf-8")
            continue
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(code, str(GUIDE), "exec"), namespace)
        assert output.getvalue().splitlines() == printed_lines(code)
        checked += len(printed_lines(code))
    assert checked >= 10
