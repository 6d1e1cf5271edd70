# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/rollout-engines.md run in order and print what they say."""

import contextlib
import io

from guides import examples, printed_lines
from tiny import make_policy, make_tokenizer, share_of_a


def test_examples_print_what_they_say(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    namespace = {"model": make_policy(), "tokenizer": make_tokenizer(), "reward": share_of_a}
    checked = 0
    for code in examples("rollout-engines.md"):
        if code.startswith("# lookup_engine.py"):
            (tmp_path / "lookup_engine.py").write_text(code, encoding="utf-8")
            assert len(code.splitlines()) <= 40
            continue
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(code, "rollout-engines.md", "exec"), namespace)
        lines = [line for line in output.getvalue().splitlines() if not line.startswith(("{", "\r", " "))]
        assert [line for line in lines if line in printed_lines(code)] == printed_lines(code)
        checked += len(printed_lines(code))
    assert checked == 6
