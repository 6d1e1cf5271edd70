# SPDX-License-Identifier: Apache-2.0
"""The recipes are scripts beside the package; their folder is on the path of whoever runs them."""

import sys
from pathlib import Path

import pytest

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
sys.path.insert(0, str(RECIPES))


@pytest.fixture
def recipes_dir() -> Path:
    return RECIPES
