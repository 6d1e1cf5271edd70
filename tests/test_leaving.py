# SPDX-License-Identifier: Apache-2.0
"""A process that has exchanged tensors with others ends in order."""

import json

import pytest
from launching import launch


@pytest.mark.slow
def test_processes_end_with_code_zero():
    """Left to themselves about half of these pairs abort."""
    done = launch("leaving_worker.py", 12)
    assert json.loads(done.stdout) == [[0, 0]] * 12, done.stderr[-2000:]
