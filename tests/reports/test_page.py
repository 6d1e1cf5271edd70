# SPDX-License-Identifier: Apache-2.0
"""The page of a run: what a trainer leaves behind, what is drawn, and that a browser opens it without complaint."""

import html
import json
import re
import shutil
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from launching import Running
from naming import assert_names, raises_naming

from minimind_hf.cli import main
from minimind_hf.reports.charts import charts_of, draw
from minimind_hf.reports.page import render, write_report
from minimind_hf.reports.record import RunRecord, read_lines, read_run, write_lines

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SVG = "{http://www.w3.org/2000/svg}"


def log(step: int, **values) -> dict:
    return {"step": step, "epoch": 0.1 * step, **values}


@pytest.fixture
def run_dir(make_trainer, tmp_path):
    trainer = make_trainer(max_steps=3)
    trainer.train()
    return tmp_path / "run"


class Tags(HTMLParser):
    """Counts opened and closed elements, and collects what would be loaded from elsewhere."""

    def __init__(self):
        super().__init__()
        self.open, self.outside = [], []

    def handle_starttag(self, tag, attributes):
        self.open += [] if tag in ("meta", "link", "br") else [tag]
        for name, value in attributes:
            if name in ("src", "href", "xlink:href") and not value.startswith(("#", "data:")):
                self.outside.append(value)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_run_leaves_what_its_report_needs(run_dir):
    run = read_run(run_dir)
    assert run.algorithm == "CISPO" and run.settings["num_generations"] == 4
    what = {name: run.settings[name] for name in ("model", "prompts", "rewards", "steps")}
    assert what == {"model": "MiniMindForCausalLM", "prompts": 12, "rewards": "1 x share_of_a", "steps": 3}
    assert list(run.series("reward")) == [1, 2, 3]
    assert [row["step"] for row in run.early] == [1] * 6 and [row["step"] for row in run.late] == [3] * 6
    assert len({row["prompt"] for row in run.early[:2]}) == 2  # one completion of each prompt first
    assert set(run.late[0]["signals"]) == {"share_of_a"}


def test_page_holds_everything_and_needs_nothing(run_dir):
    path = write_report(run_dir)
    assert path == run_dir / "report.html"
    page = path.read_text()
    tags = Tags()
    tags.feed(page)
    assert tags.open == [] and tags.outside == []
    titles = re.findall(r"<figcaption><b>(.*?)</b>", page)
    assert titles[:3] == ["Reward", "Signals", "KL to the reference"] and "Time per step" in titles
    assert page.count("<svg") == len(titles)
    assert "Early, step 1" in page and "Late, step 3" in page and "num_generations" in page


def test_health_messages_and_hostile_text_are_shown_as_text(run_dir):
    (run_dir / "health.jsonl").write_text(
        json.dumps({"step": 2, "rule": "kl_grows", "message": "KL <b>1.5</b>: raise beta"}) + "\n"
    )
    late = run_dir / "samples" / "late.jsonl"
    rows = [json.loads(line) for line in late.read_text().splitlines()]
    rows[0]["completion"] = "<script>alert(1)</script> $title ${cards}"
    late.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = write_report(run_dir).read_text()
    assert "<script>" not in page and "&lt;script&gt;alert(1)&lt;/script&gt; $title ${cards}" in page
    assert "<td>kl_grows</td><td>KL &lt;b&gt;1.5&lt;/b&gt;: raise beta</td>" in page
    assert "The health checks found nothing" not in page


def test_every_logged_number_is_drawn_or_known_to_be_left_out(run_dir):
    run = read_run(run_dir)
    drawn = {name for chart in charts_of(run) for name in chart.found_in(run)}
    left_out = {
        name for name in run.logged_names if not name.endswith("std") and not name.startswith(("train_", "total_"))
    }
    assert left_out - drawn == {"learning_rate", "ratio_mean", "advantages/mean"}


def test_what_a_reward_function_logs_gets_a_chart_of_its_own():
    run = RunRecord("run", [log(1, reward=1.0, tests_passed=3.0), log(2, reward=1.0, tests_passed=4.0)])
    assert [chart.title for chart in charts_of(run)] == ["Reward", "tests_passed"]


def test_curves_are_svg_with_text_and_names_of_their_own():
    history = [log(step, reward=float(step), **{"seconds/rollout": 1.0, "seconds/update": 2.0}) for step in (1, 2)]
    run = RunRecord("run", history)
    drawn = [ElementTree.fromstring(draw(chart, run)) for chart in charts_of(run)]
    assert len(drawn) == 2  # reward and time
    letters = {element.text for element in drawn[1].iter(f"{SVG}text")}
    assert {"rollout", "update", "seconds", "optimizer step"} <= letters
    legend = {
        id(text) for group in drawn[1].iterfind(f".//{SVG}g[@id='legend_1']") for text in group.iter(f"{SVG}text")
    }
    others = [text for text in drawn[1].iter(f"{SVG}text") if id(text) not in legend]
    above = [float(text.get("y")) for text in drawn[1].iter(f"{SVG}text") if id(text) in legend]
    assert len(above) == 2 and max(above) < min(float(text.get("y")) for text in others)  # no curve under the legend
    names = [{element.get("id") for element in svg.iter(f"{SVG}clipPath")} for svg in drawn]
    assert names[0] and not names[0] & names[1]


def test_seconds_are_those_of_all_sessions():
    # Every second step is logged, a mean over both; after a resume from step 2, step 4 counts once.
    history = [
        log(2, **{"seconds/rollout": 3.0, "seconds/update": 2.0}),
        log(4, **{"seconds/rollout": 100.0, "seconds/update": 100.0}),
        log(4, **{"seconds/rollout": 1.0, "seconds/update": 1.0}),
        log(4, eval_runtime=5.0, eval_long_runtime=0.5),
        log(4, train_runtime=7.0),
    ]
    run = RunRecord("run", history)
    assert run.seconds == 2 * 5 + 2 * 2 + 5 + 0.5
    assert "19.5 seconds in rollouts, scoring, updates and evaluations" in render(run)
    assert RunRecord("run", [log(1, reward=1.0)]).seconds is None


@pytest.mark.parametrize("slow", [[1], [1, 2], []])
def test_slow_steps_do_not_flatten_the_others(slow):
    seconds = {step: 30.0 + step if step in slow else 1.0 for step in range(1, 31)}
    run = RunRecord("run", [log(step, **{"seconds/update": value}) for step, value in seconds.items()])
    svg = ElementTree.fromstring(draw(charts_of(run)[0], run))
    letters = [element.text for element in svg.iter(f"{SVG}text")]
    note = {0: [], 1: ["highest: 31 seconds at step 1, cut"], 2: ["highest: 32 seconds at step 2, one of 2 cut"]}
    assert [text for text in letters if "highest" in text] == note[len(slow)]
    assert "1.0" in letters  # the axis is that of the usual steps


def test_a_single_logged_step_can_be_drawn():
    run = RunRecord("run", [log(1, reward=1.0, reward_std=0.1, **{"seconds/update": 2.0})])
    assert render(run).count("<svg") == 2


def test_running_run_is_read_from_its_newest_checkpoint(tmp_path):
    for step in (2, 10):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": [log(step, reward=1.0)]}))
    assert list(read_run(tmp_path).series("reward")) == [10]


def test_a_run_that_an_error_ended_can_be_reported_on(make_trainer, tmp_path):
    calls = []

    def reward(completion_ids, **kwargs):
        calls.append(None)
        if len(calls) == 3:
            raise RuntimeError("no more rewards")
        return [float(len(ids)) for ids in completion_ids]

    trainer = make_trainer(reward=reward, max_steps=5)
    with raises_naming(Exception, "no more rewards"):
        trainer.train()
    assert list(read_run(trainer.args.output_dir).series("reward")) == [1, 2]


def test_command(run_dir, tmp_path, capsys):
    assert main(["report", str(run_dir), "--output", str(tmp_path / "new" / "page.html")]) == 0
    assert (tmp_path / "new" / "page.html").read_text().startswith("<!DOCTYPE html>")
    assert main(["report", str(tmp_path / "absent")]) == 1
    assert_names(capsys.readouterr().err, "folder", tmp_path / "absent")
    assert main(["report", str(tmp_path / "new")]) == 1
    assert_names(capsys.readouterr().err, tmp_path / "new", "trainer_state.json")


def open_in_browser(page, folder) -> list[str]:
    """Opens a page, takes its picture, and returns what its console said."""
    flags = [*FLAGS, "--enable-logging=stderr", "--window-size=1280,2400"]
    picture = folder / "page.png"
    places = [f"--user-data-dir={folder / 'profile'}", f"--screenshot={picture}", page.as_uri()]
    done = Running([BROWSER, *flags, *places]).finish()
    assert picture.read_bytes().startswith(b"\x89PNG")
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on this machine (Debian: apt install chromium)")
def test_browser_opens_it_without_an_error(run_dir, tmp_path):
    assert open_in_browser(write_report(run_dir), tmp_path) == []
    assert (tmp_path / "page.png").stat().st_size > 20_000
    bad = tmp_path / "bad.html"
    bad.write_text("<script>missing()</script>")
    assert "missing is not defined" in "".join(open_in_browser(bad, tmp_path))


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("trainer_state.json", b"{}", ["log_history"]),
        ("trainer_state.json", b'{"log_history": [1]}', ["log_history"]),
        ("trainer_state.json", b"\xff", ["JSON", "utf-8"]),
        ("run.json", b"[]", ["JSON", "list"]),
        ("health.jsonl", b"{", ["JSON", "line"]),
    ],
)
def test_broken_files_of_a_run_are_named(tmp_path, file, content, named):
    (tmp_path / "trainer_state.json").write_text('{"log_history": []}')
    (tmp_path / file).write_bytes(content)
    with raises_naming(ValueError, tmp_path / file, *named):
        read_run(tmp_path)


def test_a_line_separator_in_a_text_does_not_end_the_line_of_the_file(tmp_path):
    rows = [{"step": 1, "completion": "one\u2028two\x85three"}, {"step": 1, "completion": "four"}]
    write_lines(tmp_path / "lines.jsonl", rows)
    assert read_lines(tmp_path / "lines.jsonl") == rows
    assert read_lines(tmp_path / "absent.jsonl") == []


HOSTILE = "<img src=x onerror=alert(1)>\"' & {{ 7 * 7 }} {% raw %} $x^$ </svg></script>"


def test_nothing_that_a_run_wrote_is_taken_for_markup():
    sample = {name: HOSTILE for name in ("prompt", "completion", "tokens", "finish_reason", "step")}
    run = RunRecord(
        name=HOSTILE,
        history=[
            log(step, **{f"rewards/{HOSTILE}/mean": 1.0, "rewards/b/mean": 2.0, HOSTILE: 3.0}) for step in (1, 2)
        ],
        algorithm=HOSTILE,
        settings={HOSTILE: HOSTILE, "nested": [HOSTILE]},
        early=[{**sample, "signals": {HOSTILE: 1.0}}],
        late=[{**sample, "completion": [{"role": HOSTILE, "content": HOSTILE}]}],
        health=[{"step": HOSTILE, "rule": HOSTILE, "message": HOSTILE}],
    )
    page = render(run)
    tags = Tags()
    tags.feed(page)
    assert tags.open == [] and tags.outside == [] and "<img" not in page
    # run 2, algorithm 1, health 3, title of a chart 1, legend 1; steps 2, prompts 2, completion 1, role and content 2,
    # tokens 2, signal 1; settings 3
    assert html.unescape(page).count("onerror=alert(1)>") == 21
    assert page.count("{{ 7 * 7 }}") == 21 and "49" not in re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)


def test_an_earlier_page_stays_until_the_new_one_is_whole(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": [log(1, reward=1.0)]}))
    elsewhere = tmp_path / "elsewhere.html"
    elsewhere.write_text("something else")
    (folder / "report.html").symlink_to(elsewhere)
    monkeypatch.setattr("minimind_hf.reports.page.render", lambda run: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_report(folder)
    assert (folder / "report.html").is_symlink()
    monkeypatch.undo()
    write_report(folder)
    assert elsewhere.read_text() == "something else" and not (folder / "report.html").is_symlink()
    assert (folder / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", "trainer_state.json"]


def test_a_log_of_strings_is_refused_or_left_out(tmp_path):
    (tmp_path / "trainer_state.json").write_text('{"log_history": [{"step": "one", "reward": 1.0}]}')
    with raises_naming(ValueError, "trainer_state.json", "step"):
        write_report(tmp_path)
    (tmp_path / "trainer_state.json").write_text('{"log_history": [{"step": 1, "reward": "high", "loss": 0.5}]}')
    assert write_report(tmp_path).is_file()
