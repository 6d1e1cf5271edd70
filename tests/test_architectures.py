# SPDX-License-Identifier: Apache-2.0
"""Every causal LM of transformers that can be made tiny trains, or is refused when the trainer is made."""

import importlib.util
import json
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
pytestmark = pytest.mark.slow


def _script():
    spec = importlib.util.spec_from_file_location("docs_architectures", DOCS / "architectures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = _script()
FOUND = json.loads(SCRIPT.RESULTS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", SCRIPT.causal_lms())
def test_it_trains_or_is_refused_as_the_page_says(kind):
    found = SCRIPT.tried(kind)  # a crash in training is a failure
    assert found["outcome"] == FOUND[kind]["outcome"]
    if found["outcome"] == "trained":
        assert (found["layout"], found["rollout"]) == (FOUND[kind]["layout"], FOUND[kind]["rollout"])
        assert float(found["difference"]) <= 1e-4
