# SPDX-License-Identifier: Apache-2.0
"""The helper that error tests rely on: it fails where a name or a number is missing or is part of another."""

import pytest
from naming import assert_names, names, raises_naming

TEXT = "max_completion_length must be at least 1, got -2.5 (see --num_steps 30). Set `beta` to 'a b' in run.json."


@pytest.mark.parametrize(
    "piece", ["max_completion_length", 1, -2.5, "--num_steps 30", 30, "beta", "'a b'", "run.json", "json"]
)
def test_named(piece):
    assert names(TEXT, piece)


@pytest.mark.parametrize("piece", ["completion_length", 2.5, -2, 2, 5, 3, "beta_1", "num_step", "max_", None])
def test_not_named(piece):
    assert not names(TEXT, piece)


def test_raises_naming():
    with raises_naming(ValueError, "beta", 0.5) as raised:
        raise ValueError("beta is 0.5")
    assert raised.value.args == ("beta is 0.5",)
    with pytest.raises(AssertionError) as failed, raises_naming(ValueError, "beta", 0.25):
        raise ValueError("beta is 0.5")
    assert_names(str(failed.value), "[0.25]", "beta is 0.5")
    with pytest.raises(KeyError), raises_naming(ValueError, "beta"):
        raise KeyError("beta")
    with pytest.raises(pytest.fail.Exception), raises_naming(ValueError, "beta"):
        pass
    with pytest.raises(TypeError), raises_naming(ValueError):
        raise ValueError
