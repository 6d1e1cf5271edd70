# SPDX-License-Identifier: Apache-2.0
"""Episodes of two processes (gloo) on two stand-ins for SGLang servers: those of one process, whatever fails."""

import pytest
import torch
from launching import launch_forked
from naming import assert_names
from served_episodes import restart
from served_episodes_worker import SAMPLING, SESSIONS
from sessions import FixedSession
from sglang_double import aborts, takes
from tiny import make_policy

TIMEOUT = 200  # seconds; a run takes about 10 on a quiet machine


def run(folder, doubles, case: str, expected: int = 0) -> list[dict]:
    """Returns what each process left."""
    urls = [double.url for double in doubles]
    launch_forked("served_episodes_worker", folder, urls, case, processes=2, timeout=TIMEOUT, expected=expected)
    return [torch.load(folder / f"result_{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["shared", "all in one", "aborted", "restarted"])
def test_two_processes_play_what_one_plays(tmp_path, doubles, make_engine, case):
    alone = make_engine(*doubles, sync_folder=tmp_path / "alone")
    alone.sync_weights(make_policy(), 1)
    expected = alone.converse([FixedSession(list(ids), answers) for ids, answers in SESSIONS], SAMPLING)
    if case == "restarted":
        doubles[0].next("/generate", *[takes(0)] * 4, restart(doubles[0]))  # two requests compare vocabularies
    if case == "aborted":
        doubles[0].next("/generate", *[takes(0)] * 3, aborts(1), aborts(1))
    results = run(tmp_path, doubles, case)
    assert [rollout for result in results for rollout in result["rollouts"]] == expected
    assert all(cached <= tokens for cached, tokens in (result["measured"] for result in results))
    assert [double.starts for double in doubles] == [1 + (case == "restarted"), 1]


def test_a_session_that_fails_in_one_process_ends_both(tmp_path, doubles):
    results = run(tmp_path, doubles, "failing", expected=1)
    for result in results:
        assert_names(result["error"], "LookupError", "this tool knows no answer")
    assert sum(result["error"].startswith("RuntimeError: ") for result in results) == 1
