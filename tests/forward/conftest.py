# SPDX-License-Identifier: Apache-2.0
"""Fixtures of this folder."""

import pytest


@pytest.fixture
def onednn(monkeypatch):
    """Products by oneDNN, on Intel's CPUs too."""
    from minimind_hf.forward import lean

    if not lean.is_available():
        pytest.skip("this build of torch has no oneDNN")
    monkeypatch.setattr(lean, "is_preferred", lambda: True)
