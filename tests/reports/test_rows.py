# SPDX-License-Identifier: Apache-2.0
"""The completions that a page lets its reader search: which they are, and that there is room for them."""

import base64
import gzip
import json
import random

from minimind_hf.reports.record import RunRecord, write_lines
from minimind_hf.reports.rows import rows_of

STEPS = range(1, 41)


def logged_run(folder, words: int) -> RunRecord:
    rng = random.Random(0)
    for step in STEPS:
        rows = [
            {
                "step": step,
                "prompt": "p",
                "completion": " ".join(str(rng.random()) for _ in range(words)),
                "reward": 1.0,
            }
            for _ in range(3)
        ]
        write_lines(folder / "completions" / f"completions_{step:06d}.jsonl", rows)
    return RunRecord("run", [], folder=folder)


def unpacked(data: str) -> list[dict]:
    return json.loads(gzip.decompress(base64.b64decode(data)))


def test_all_logged_completions_are_there(tmp_path):
    rows = rows_of([logged_run(tmp_path, words=2)], ["run"])
    assert (rows.count, rows.logs, rows.steps, rows.all_logged) == (120, 40, [*STEPS], True)
    assert len(unpacked(rows.data)) == 120 and unpacked(rows.data)[0]["run"] == ""


def test_too_many_are_thinned_evenly_and_the_last_stay(tmp_path):
    room = 20_000
    rows = rows_of([logged_run(tmp_path, words=100)], ["run"], room=room)
    assert len(rows.data) <= room and rows.count == 3 * len(rows.steps) and rows.logs == 40
    assert rows.steps[-1] == 40 and len(rows.steps) > 3
    assert len({later - earlier for earlier, later in zip(rows.steps, rows.steps[1:], strict=False)}) == 1
    assert {row["step"] for row in unpacked(rows.data)} == set(rows.steps)


def test_no_more_is_read_than_could_be_shown(tmp_path, monkeypatch):
    run = logged_run(tmp_path, words=10)
    size = (tmp_path / "completions" / "completions_000001.jsonl").stat().st_size
    read = []
    monkeypatch.setattr("minimind_hf.reports.rows.read_lines", lambda file: read.append(file.name) or [])
    monkeypatch.setattr("minimind_hf.reports.rows.MOST_BYTES", 10 * size)
    assert rows_of([run], ["run"]).logs == 40
    assert len(read) in (8, 10) and read[-1] == "completions_000040.jsonl" and read == sorted(read)


def test_one_log_that_is_too_large_is_cut(tmp_path):
    rows = rows_of([logged_run(tmp_path, words=3000)], ["run"], room=60_000)
    assert rows.steps == [40] and 1 <= rows.count < 3


def test_samples_stand_in_for_a_log_and_runs_are_named():
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}
    row = {"step": 1, "prompt": [{"role": "user", "content": "q"}], "completion": [call], "finish_reason": "length"}
    runs = [RunRecord("one", [], early=[row]), RunRecord("two", [], late=[{**row, "step": 2}])]
    rows = rows_of(runs, ["one", "two"])
    first, second = unpacked(rows.data)
    assert (first["run"], second["run"], rows.all_logged) == ("one", "two", False)
    assert first["prompt"] == "user: q" and first["completion"] == "assistant: → f(a=1)" and first["cut"]
    assert rows_of([RunRecord("none", [])], ["none"]).count == 0
