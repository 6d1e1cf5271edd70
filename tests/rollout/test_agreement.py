# SPDX-License-Identifier: Apache-2.0
"""Where one process fails, all end with its error, soon."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from minimind_hf.rollout.agreement import failing_together, gather, on_main, rank

WORKER = Path(__file__).with_name("agreement_worker.py")


@pytest.fixture(scope="module")
def outcomes():
    environment = {**os.environ, "PYTHONPATH": str(WORKER.parents[2])}
    done = subprocess.run([sys.executable, str(WORKER)], env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_results_of_all_and_of_the_first(outcomes):
    assert outcomes["values"] == [["returned", [number, ["a", "b"], 7]] for number in range(2)]
    assert outcomes["with_results"] == [["returned", 10], ["returned", 11]]


def test_those_that_did_not_fail_name_those_that_did(outcomes):
    (kind, message), own = outcomes["one"]
    assert own == ["ValueError", "bad 3"]
    assert kind == "RuntimeError"
    assert "working failed in 1 of 2 processes" in message and "process 1: ValueError: bad 3" in message


def test_those_that_failed_raise_their_own(outcomes):
    assert outcomes["both"] == [["ValueError", "bad 3"], ["TypeError", "bad 4"]]


def test_only_servers_that_are_gone_let_all_save(outcomes):
    assert [kind for kind, _ in outcomes["gone"]] == ["ServerGoneError"] * 2
    assert "process 0: ServerGoneError: away" in outcomes["gone"][1][1]
    assert [kind for kind, _ in outcomes["all_gone"]] == ["ServerGoneError"] * 3
    kinds, messages = zip(*outcomes["gone_and_more"], strict=True)
    assert kinds == ("ServerGoneError", "ValueError", "RuntimeError")
    assert "2 of 3" in messages[2] and "process 0: ServerGoneError: away" in messages[2]
    assert "process 1: ValueError: bad 3" in messages[2]


def test_work_of_the_first_process_fails_in_all(outcomes):
    assert outcomes["on_main"][0] == ["KeyError", "'weights'"]
    kind, message = outcomes["on_main"][1]
    assert kind == "RuntimeError" and "pushing failed in 1 of 2" in message
    assert "process 0: KeyError: 'weights'" in message


def test_an_exchange_within_another_ends_both(outcomes):
    (kind, message), own = outcomes["nested"]
    assert own == ["KeyError", "'key'"]
    assert kind == "RuntimeError" and "a part failed in 1 of 2" in message


def test_a_process_that_is_lost_is_named_as_the_cause(outcomes):
    (kind, message), lost = outcomes["dying"]
    assert lost is None
    assert kind == "RuntimeError" and "Another process is gone" in message and "working" in message


def test_alone_there_is_nothing_to_exchange():
    assert (rank(), gather(3), on_main("working", lambda: 4)) == (0, [3], 4)
    with pytest.raises(KeyError, match="key"), failing_together("working"):
        raise KeyError("key")
    with pytest.raises(KeyError, match="key"):
        on_main("working", lambda: {}["key"])
