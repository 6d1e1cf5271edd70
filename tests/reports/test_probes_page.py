# SPDX-License-Identifier: Apache-2.0
"""Probe prompts on the page: the same prompt in a row, and what has changed marked."""

from minimind_hf.reports.page import render
from minimind_hf.reports.probes import MOST_ROUNDS, changes, probes_of
from minimind_hf.reports.record import RunRecord


def answer(step: int, probe: int, text: str, **more) -> dict:
    return {
        "step": step,
        "probe": probe,
        "prompt": f"p{probe}",
        "completion": text,
        "reward": 0.5,
        "tokens": 3,
        **more,
    }


def test_changes_are_words_that_are_new():
    assert changes(None, "one two") == [("one two", False)]
    assert changes("1+1=3", "1+1=2") == [("1+1=", False), ("2", True)]
    assert changes("a b", "a b c") == [("a b", False), (" c", True)]
    assert changes("a b c", "a c") == [("a ", False), ("c", False)]
    assert changes("x", "x") == [("x", False)] and changes("x", "") == []


def test_the_same_prompt_in_a_row():
    run = RunRecord("run", [], probes=[answer(0, 0, "no"), answer(0, 1, "a"), answer(5, 0, "yes"), answer(5, 1, "a")])
    found = probes_of(run)
    assert found["steps"] == [0, 5] and [probe["prompt"] for probe in found["prompts"]] == ["p0", "p1"]
    first, second = found["prompts"][0]["answers"]
    assert second["pieces"] == [("yes", True)] and not second["same"] and first["line"] == "reward 0.5, 3 tokens"
    assert found["prompts"][1]["answers"][1]["same"]
    page = render(run)
    assert "<ins>yes</ins>" in page and ">start</th>" in page and ">step 5</th>" in page
    assert "reward 0.5, 3 tokens, the same answer" in page


def test_many_rounds_are_thinned_and_both_ends_stay():
    rounds = range(0, 1001, 10)
    found = probes_of(RunRecord("run", [], probes=[answer(step, 0, "a") for step in rounds]))
    assert found["total"] == len(rounds) and len(found["steps"]) <= MOST_ROUNDS + 1
    assert (found["steps"][0], found["steps"][-1]) == (0, 1000)
    assert probes_of(RunRecord("run", [])) == {"steps": [], "total": 0, "prompts": []}
