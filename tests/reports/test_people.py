# SPDX-License-Identifier: Apache-2.0
"""Numbers and times as people write them."""

import math

import pytest

from minimind_hf.reports.people import counted, duration, millions, number, percent


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (3680, "3,680"), (3680.4, "3,680"), (1234567.0, "1,234,567"), (999.96, "1,000"), (123.4, "123"),
        (12.345, "12.3"), (1.5, "1.5"), (2.0, "2"), (0.0692, "0.0692"), (0.00012, "0.00012"), (9.96e-05, "9.96e-5"),
        (3e-13, "3e-13"), (-0.25, "-0.25"), (-4321.0, "-4,321"), (1e20, "100,000,000,000,000,000,000"),
        (math.nan, "-"), (math.inf, "-"), (None, "-"), ("1", "-"), (True, "-"),
    ],
)  # fmt: skip
def test_numbers(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (0.4213, "0.421 s"), (9.99, "9.99 s"), (12.4, "12 s"), (59.6, "1 min"), (192.4, "3 min 12 s"),
        (3600, "1 h"), (3659, "1 h"), (7500, "2 h 5 min"), (90_000, "1 d 1 h"),
    ],
)  # fmt: skip
def test_times(seconds, text):
    assert duration(seconds) == text


def test_shares_counts_and_sizes():
    assert (percent(0.9375), percent(0)) == ("93.8 %", "0.0 %")
    assert (counted(1, "step"), counted(2000, "step")) == ("1 step", "2,000 steps")
    assert [millions(n) for n in (950, 28_983_000, 1_500_000_000)] == ["950", "28.98 M", "1.5 B"]
