# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for SGLang servers, and engines that use them."""

import pytest
from sglang_double import SGLangDouble
from tiny import make_policy

from minimind_hf.rollout import SGLangEngine
from minimind_hf.rollout.exported_weights import exported_config, exported_weights, write_weights


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A folder of another MiniMind than the trainer's: what the server has before the first sync."""
    folder = tmp_path_factory.mktemp("served")
    model = make_policy(seed=9)
    write_weights(exported_weights(model), exported_config(model), folder)
    return folder


@pytest.fixture
def start_double(served):
    doubles = []

    def start(folder=served, **options) -> SGLangDouble:
        doubles.append(SGLangDouble(folder, **options))
        return doubles[-1]

    yield start
    for double in doubles:
        double.stop()


@pytest.fixture
def make_engine(tmp_path):
    engines = []

    def make(*doubles, timeout=60.0, **options) -> SGLangEngine:
        options = {"sync_folder": tmp_path / "sync", "server_timeout": timeout} | options
        engines.append(SGLangEngine([double.url for double in doubles], **options))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def double(start_double):
    return start_double()


@pytest.fixture
def doubles(start_double):
    return start_double(), start_double()


@pytest.fixture
def synced(make_engine, double):
    """An engine whose server has the weights of `make_policy()`."""
    engine = make_engine(double)
    engine.sync_weights(make_policy(), version=3)
    return engine
