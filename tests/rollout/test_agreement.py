# SPDX-License-Identifier: Apache-2.0
"""Where one process fails, all end with its error, soon."""

import json

import pytest
from launching import launch_forked
from naming import assert_names, raises_naming

from minimind_hf.rollout.agreement import failing_together, gather, on_main, rank


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    path = tmp_path_factory.mktemp("agreement") / "outcomes.json"
    launch_forked("agreement_worker", path, processes=1)
    return json.loads(path.read_text())


def test_results_of_all_and_of_the_first(outcomes):
    assert outcomes["values"] == [["returned", [number, ["a", "b"], 7]] for number in range(2)]
    assert outcomes["with_results"] == [["returned", 10], ["returned", 11]]


def test_those_that_did_not_fail_name_those_that_did(outcomes):
    (kind, message), own = outcomes["one"]
    assert own == ["ValueError", "bad 3"]
    assert kind == "RuntimeError"
    assert_names(message, "working", "1 of 2", "process 1", "ValueError: bad 3")


def test_those_that_failed_raise_their_own(outcomes):
    assert outcomes["both"] == [["ValueError", "bad 3"], ["TypeError", "bad 4"]]


def test_only_servers_that_are_gone_let_all_save(outcomes):
    assert [kind for kind, _ in outcomes["gone"]] == ["ServerGoneError"] * 2
    assert_names(outcomes["gone"][1][1], "process 0", "ServerGoneError: away")
    assert [kind for kind, _ in outcomes["all_gone"]] == ["ServerGoneError"] * 3
    kinds, messages = zip(*outcomes["gone_and_more"], strict=True)
    assert kinds == ("ServerGoneError", "ValueError", "RuntimeError")
    assert_names(messages[2], "2 of 3", "process 0: ServerGoneError: away", "process 1: ValueError: bad 3")


def test_work_of_the_first_process_fails_in_all(outcomes):
    assert outcomes["on_main"][0] == ["KeyError", "'weights'"]
    kind, message = outcomes["on_main"][1]
    assert kind == "RuntimeError"
    assert_names(message, "pushing", "1 of 2", "process 0", "KeyError: 'weights'")


def test_an_exchange_within_another_ends_both(outcomes):
    (kind, message), own = outcomes["nested"]
    assert own == ["KeyError", "'key'"]
    assert kind == "RuntimeError"
    assert_names(message, "a part", "1 of 2")


def test_a_process_that_is_lost_is_named_as_the_cause(outcomes):
    (kind, message), lost = outcomes["dying"]
    assert lost is None
    assert kind == "RuntimeError"
    assert_names(message, "working", "connection")


def test_alone_there_is_nothing_to_exchange():
    assert (rank(), gather(3), on_main("working", lambda: 4)) == (0, [3], 4)
    with raises_naming(KeyError, "key"), failing_together("working"):
        raise KeyError("key")
    with raises_naming(KeyError, "key"):
        on_main("working", lambda: {}["key"])
