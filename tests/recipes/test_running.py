# SPDX-License-Identifier: Apache-2.0
"""Errors of a recipe: one line, with `--debug` a traceback."""

import sys

import pytest
import running
from naming import assert_names

from minimind_hf.data import PromptError
from minimind_hf.trainer.models.weights import NotFiniteError


def raising(error: BaseException):
    def main(arguments):
        raise error

    return main


@pytest.fixture
def called(monkeypatch):
    def call(*arguments: str):
        monkeypatch.setattr(sys, "argv", ["recipes/grpo.py", *arguments])

    return call


@pytest.mark.parametrize(
    "error", [ValueError("bad\n value"), OSError("no file"), PromptError("row 3"), NotFiniteError("step 1")]
)
def test_what_the_user_can_correct_is_one_line(called, capsys, error):
    called()
    with pytest.raises(SystemExit) as stopped:
        running.run(raising(error))
    assert stopped.value.code == 1
    text = capsys.readouterr().err
    assert text.startswith(f"grpo.py: error: {' '.join(str(error).split())}") and text.count("\n") == 1


def test_an_error_from_elsewhere_says_its_kind_and_one_of_ours_does_not(called, capsys):
    called()
    with pytest.raises(SystemExit):
        running.run(lambda arguments: int("x"))
    assert_names(capsys.readouterr().err, "'x'", "ValueError", "--debug")
    with pytest.raises(SystemExit):
        running.run(lambda arguments: __import__("grpo").main(["--nonsense", "1"]))
    assert "ValueError" not in capsys.readouterr().err


def test_ctrl_c_is_one_line(called, capsys):
    called()
    with pytest.raises(SystemExit) as stopped:
        running.run(raising(KeyboardInterrupt()))
    assert stopped.value.code == 130
    assert capsys.readouterr().err == "grpo.py: interrupted\n"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [(["--debug"], ValueError), (["--debug"], KeyboardInterrupt), ([], RuntimeError), ([], TypeError)],
)
def test_a_traceback_is_shown(called, arguments, error):
    called(*arguments)
    with pytest.raises(error):
        running.run(raising(error("anything")))


@pytest.mark.parametrize(
    ("arguments", "left", "shows_all"),
    [
        ([], [], False),
        (["--debug"], [], True),
        (["--seed", "1", "--debug", "--use_cpu"], ["--seed", "1", "--use_cpu"], True),
        (["--debug", "underflow_overflow"], ["--debug", "underflow_overflow"], False),
    ],
)
def test_debug_with_a_value_is_the_setting_of_transformers(arguments, left, shows_all, called):
    assert running.without_debug(arguments) == (left, shows_all)
    called(*arguments)
    passed = []
    running.run(passed.extend)
    assert passed == left
