# SPDX-License-Identifier: Apache-2.0
"""The recipes are scripts beside the package; pyproject.toml puts their folder on the path of the tests."""

from pathlib import Path

import pytest

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


@pytest.fixture
def recipes_dir() -> Path:
    return RECIPES
