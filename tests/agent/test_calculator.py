# SPDX-License-Identifier: Apache-2.0
"""The calculator calculates, and nothing that is written to it can do anything else."""

import pytest
from naming import raises_naming

from minimind_hf.agent import Toolbox, calculate
from minimind_hf.agent.calculator import DEEPEST, LONGEST


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", "7"),
        ("(1 + 2) * 3", "9"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("7 / 2", "3.5"),
        ("6 / 2", "3"),
        (f"{3 * 10**40} / 3", str(10**40)),
        ("2 ** 100", str(2**100)),
        ("2 ** -1", "0.5"),
        ("-2 ** 2", "-4"),
        ("(-1) ** 99999999999999", "-1"),
        ("0.1 + 0.2", "0.3"),
        ("1 / 3", "0.333333333333"),
        ("2.5e3", "2500"),
        (" 3 × 4 ÷ 6 − +1 ", "1"),
        ("1e300 * 10", "1e+301"),
    ],
)
def test_values(expression, value):
    assert calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "piece"),
    [
        ("1 / 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("9 ** 9 ** 9", "too large"),
        ("9 ** 9999999999999999", "too large"),
        ("2.0 ** 99999", "too large"),
        ("1e308 * 10", "too large"),
        ("*".join(["10 ** 300"] * 5), "too large"),
        ("(-8) ** 0.5", "real number"),
        ("2 ^ 10", "**"),
        ("1 << 99999", "only the operations"),
        ("__import__('os').system('true')", "__import__"),
        ("(lambda: 1)()", "lambda"),
        ("True + 1", "'True'"),
        ("'a' * 3", "'a'"),
        ("2j", "'2j'"),
        ("x + 1", "'x'"),
        ("1 +", "'1 +'"),
        ("", "''"),
        ("3 = 3", "'3 = 3'"),
        ("(" * 300 + ")" * 100, "no arithmetic expression"),
        ("1" * (LONGEST + 1), LONGEST),
        ("-" * (DEEPEST + 1) + "1", DEEPEST),
        (3, "int"),
    ],
)
def test_what_is_refused(expression, piece):
    with raises_naming(ValueError, piece):
        calculate(expression)


def test_it_is_a_tool():
    (schema,) = Toolbox([calculate]).schemas
    assert schema["function"]["name"] == "calculate"
    assert schema["function"]["parameters"]["required"] == ["expression"]
