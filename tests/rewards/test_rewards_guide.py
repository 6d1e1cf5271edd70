# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/rewards.md run in order and print what they say."""

import contextlib
import io

import pytest
from guides import examples, printed_lines


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
    for code in examples("rewards.md"):
        if code.startswith("# my_rewards.py"):
            (folder / "my_rewards.py").write_text(code, encoding="utf-8")
            continue
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(code, "rewards.md", "exec"), namespace)
        assert output.getvalue().splitlines() == printed_lines(code)
        checked += len(printed_lines(code))
    assert checked >= 10
