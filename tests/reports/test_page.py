# SPDX-License-Identifier: Apache-2.0
"""The page of a run: what a trainer leaves behind, what is drawn, and that a browser opens it without complaint."""

import base64
import gzip
import html
import json
import os
import re
import shutil
from html.parser import HTMLParser

import pytest
from launching import Running
from naming import assert_names, raises_naming

from minimind_hf.cli import main
from minimind_hf.health.checks import LIMITS
from minimind_hf.reports.charts import charts_of
from minimind_hf.reports.page import LOGS_OF_FIRST_CHECKS, render, write_report
from minimind_hf.reports.record import RunRecord, read_lines, read_run, write_lines
from minimind_hf.trainer.logs.about import command_line

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
LARGEST_PAGE = 2_000_000  # bytes


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
        self.open += [] if tag in ("meta", "link", "br", "input") else [tag]
        for name, value in attributes:
            if name in ("src", "href", "xlink:href") and not value.startswith(("#", "data:")):
                self.outside.append(value)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def unpacked(page: str, name: str):
    """What lies packed in the page for its scripts."""
    text = re.search(rf'<script type="text/plain" id="{name}">(.*?)</script>', page, re.DOTALL).group(1)
    return json.loads(gzip.decompress(base64.b64decode(text)))


def test_a_run_leaves_what_its_report_needs(run_dir):
    run = read_run(run_dir)
    assert run.algorithm == "CISPO" and run.settings["num_generations"] == 4
    what = {name: run.settings[name] for name in ("model", "prompts", "rewards", "steps")}
    assert what == {"model": "MiniMindForCausalLM", "prompts": 12, "rewards": "1 x share_of_a", "steps": 3}
    assert run.weights == {"share_of_a": 1.0} and run.changed["num_generations"] == 4
    assert run.about["parameters"] == run.about["trainable_parameters"] > 10_000
    assert {"command", "machine", "started", "versions"} <= set(run.about) and "torch" in run.about["versions"]
    assert list(run.series("reward")) == [1, 2, 3]
    assert [row["step"] for row in run.early] == [1] * 6 and [row["step"] for row in run.late] == [3] * 6
    assert len({row["prompt"] for row in run.early[:2]}) == 2  # one completion of each prompt first
    assert set(run.late[0]["signals"]) == {"share_of_a"}
    assert [row["step"] for row in run.distributions] == [1, 2, 3]
    for row, log in zip(run.distributions, run.history, strict=False):
        assert sum(row["reward"]["counts"]) == sum(row["tokens"]["counts"]) == log["completions/count"] == 8
        assert (row["reward"]["low"], row["tokens"]["high"]) == (
            pytest.approx(log["reward_min"]), log["completions/max_length"],
        )  # fmt: skip
    assert read_lines(run_dir / "log.jsonl") == run.history


def test_page_holds_everything_and_needs_nothing(run_dir):
    path = write_report(run_dir)
    assert path == run_dir / "report.html"
    page = path.read_text()
    tags = Tags()
    tags.feed(page)
    assert tags.open == [] and tags.outside == []
    titles = re.findall(r"<figcaption><b>(.*?)</b>", page)
    assert titles[:3] == ["Reward", "Signals", "KL to the reference"] and "Time per step" in titles
    assert titles[-2:] == ["Rewards of completions", "Lengths of completions"]
    spoken = re.findall(r'role="img" aria-label="(.*?)"', page)
    assert len(spoken) == len(titles) and all(said.startswith(t) for said, t in zip(spoken, titles, strict=True))
    assert "Early, step 1" in page and "Late, step 3" in page and "num_generations" in page
    assert len(path.read_bytes()) < LARGEST_PAGE


def test_a_run_from_python_leaves_its_page_and_says_where(make_trainer, tmp_path, capsys):
    make_trainer(max_steps=1, disable_tqdm=False, save_strategy="steps", save_steps=1).train()
    out = tmp_path / "run"
    page = (out / "report.html").read_text()
    assert "<title>run</title>" in page and "1 optimizer step" in page
    report, model, completions, then = capsys.readouterr().out.splitlines()[-4:]
    assert report == f"report: {out}/report.html" and model == f"model: {out}/checkpoint-1"
    assert completions.startswith(f"completions: {out}/samples, ") and then.endswith(f"chat {out}/checkpoint-1")


def test_a_report_that_cannot_be_written_does_not_take_the_model_with_it(make_trainer, monkeypatch, caplog):
    monkeypatch.setattr("minimind_hf.trainer.logs.run_files.write_report", lambda folder, **options: 1 / 0)
    trainer = make_trainer(max_steps=1)
    trainer.train()
    assert_names(caplog.text, "ZeroDivisionError", "minimind-hf report", trainer.args.output_dir)


def test_name_command_and_given_settings_are_shown(make_trainer, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py", "--hub_token", "abc", "--api_key=def", "--max_steps", "1"])
    make_trainer(max_steps=1, run_name="sums & more", log_completions=True).train()
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<h1>sums &amp; more</h1>" in page
    assert "python train.py --hub_token &#39;[hidden]&#39; &#39;--api_key=[hidden]&#39; --max_steps 1" in page
    given, others = page.split("other settings")[0].split("Given by the user")[-1], page.split("other settings")[-1]
    assert "<td>log_completions</td><td>true</td>" in given and "<td>temperature</td>" in others
    assert len(unpacked(page, "row-data")) == 8 and "All 8 completions that were logged" in page


def test_a_command_of_this_package_is_shown_as_it_was_typed(make_trainer, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["minimind-hf grpo", "--config", "my own.yaml"])
    make_trainer(max_steps=1).train()
    assert read_run(tmp_path / "run").about["command"] == "minimind-hf grpo --config 'my own.yaml'"


def test_an_interpreter_inside_another_program_has_no_command():
    assert command_line([]) == "python"


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


@pytest.mark.parametrize(
    ("kind", "message", "told"),
    [
        ("KeyboardInterrupt", "", "The run was interrupted at step 17 (Ctrl-C)."),
        ("RuntimeError", "", "The run ended at step 17 with RuntimeError."),
        ("RuntimeError", "{odd}", "The run ended at step 17 with RuntimeError: {odd}"),
    ],
)
def test_how_a_run_ended_is_told(kind, message, told):
    error = {"type": kind, "message": message, "step": 17, "where": []}
    assert f'<p class="warn">{told}</p>' in render(RunRecord("run", [log(17, reward=1.0)], error=error))


def test_controls_of_the_curves_stay_in_view_in_their_section_alone():
    page = render(RunRecord("run", [log(1, reward=1.0)], health=[{"step": 1, "rule": "r", "message": "m"}]))
    section = re.search(r"<section>\s*<h2>Curves</h2>(.*?)</section>", page, re.DOTALL).group(1)
    assert 'class="controls"' in section and "data-chart=" in section and "<h2>" not in section


@pytest.mark.parametrize(("late", "different"), [("one", False), ("another", True), (None, False)])
def test_that_answers_side_by_side_have_different_prompts_is_said(late, different):
    rows = [[{"prompt": prompt, "completion": "x"}] if prompt else [] for prompt in ("one", late)]
    page = render(RunRecord("run", [log(1, reward=1.0)], early=rows[0], late=rows[1]))
    assert ("The two columns have different prompts" in page) == different


def test_a_short_run_is_not_called_healthy():
    short, long = (RunRecord("run", [log(step, loss=0.1) for step in range(1, count + 1)]) for count in (2, 5))
    needed = f"(the first need {LOGS_OF_FIRST_CHECKS})"
    assert min(LIMITS.few, LIMITS.reward_is_constant_over) == LOGS_OF_FIRST_CHECKS
    page = render(short)
    assert f"Only 2 optimizer steps logged: most checks have no data yet {needed}." in page
    assert 'class="good"' not in page and 'class="good"' in render(long) and needed not in render(long)
    assert '<p class="muted">run (1): Only 2 optimizer steps' in render(short, long)


def test_every_logged_number_is_drawn_or_known_to_be_left_out(run_dir):
    run = read_run(run_dir)
    drawn = {name for chart in charts_of(run) for name in chart.found_in(run)}
    left_out = {
        name for name in run.logged_names if not name.endswith("std") and not name.startswith(("train_", "total_"))
    }
    axes = {"completions/count", "completions/tokens"}
    assert left_out - drawn == {"ratio_mean", "advantages/mean", *axes}


def test_what_a_reward_function_logs_gets_a_chart_of_its_own():
    run = RunRecord("run", [log(1, reward=1.0, tests_passed=3.0), log(2, reward=1.0, tests_passed=4.0)])
    assert [chart.title for chart in charts_of(run)] == ["Reward", "tests_passed"]


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
    assert "20 s in rollouts, scoring, updates and evaluations" in render(run)
    assert RunRecord("run", [log(1, reward=1.0)]).seconds is None


def test_a_single_logged_step_can_be_drawn():
    run = RunRecord("run", [log(1, reward=1.0, reward_std=0.1, **{"seconds/update": 2.0})])
    assert render(run).count("<figure") == 2


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


def test_several_runs_are_compared_on_one_page(run_dir, tmp_path, capsys, monkeypatch):
    other = tmp_path / "other"
    shutil.copytree(run_dir, other)
    described = json.loads((other / "run.json").read_text())
    described["settings"]["beta"] = 0.5
    (other / "run.json").write_text(json.dumps(described))
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(run_dir), str(other)]) == 0
    assert capsys.readouterr().out == "wrote comparison.html\n"
    page = (tmp_path / "comparison.html").read_text()
    assert "<title>2 runs compared</title>" in page and "<td>beta</td>" in page and "<td>0.5</td>" in page
    assert '<td data-head="reward at the end">' in page  # on narrow screens the head of the table is hidden
    tags = Tags()
    tags.feed(page)
    assert tags.open == [] and tags.outside == []
    rows = unpacked(page, "row-data")
    assert {row["run"] for row in rows} == {"run", "other"} and "<option>other</option>" in page
    with raises_naming(ValueError, 2, "path"):
        write_report([run_dir, other])


def test_a_run_is_watched_while_it_goes_on(tmp_path, capsys, monkeypatch):
    run, looks = tmp_path / "run", []

    def wait(seconds: int) -> None:
        looks.append(seconds)
        step = len(looks)
        if step == 4:
            raise KeyboardInterrupt
        run.mkdir(exist_ok=True)
        with (run / "log.jsonl").open("a") as file:  # the second line is not whole yet at the third look
            file.write({1: json.dumps(log(1, reward=1.0)) + "\n", 2: json.dumps(log(2, reward=2.0)), 3: "\n"}[step])
        os.utime(run / "log.jsonl", (step, step))

    monkeypatch.setattr("time.sleep", wait)
    assert main(["report", str(run), "--watch", "3"]) == 0
    assert looks == [3] * 4 and capsys.readouterr().out.count("wrote") == 4
    page = (run / "report.html").read_text()
    assert "data-refresh=" not in page and "2 optimizer steps" in page
    assert main(["report", str(run), "--watch", "0"]) == 1
    assert_names(capsys.readouterr().err, "--watch", 0)


def test_a_page_that_is_watched_asks_to_be_loaded_again():
    run = RunRecord("run", [log(1, reward=1.0)])
    assert '<body data-refresh="7">' in render(run, refresh=7) and "<body>" in render(run)


def open_in_browser(page, folder, *flags: str, width: int = 1280) -> tuple[str, list[str]]:
    """Opens a page; returns what is left of it once its scripts have run, and what its console said."""
    picture = folder / "page.png"
    places = [f"--user-data-dir={folder / 'profile'}", f"--window-size={width},6000", "--virtual-time-budget=20000"]
    logging = ["--enable-logging=stderr", "--dump-dom", f"--screenshot={picture}"]
    done = Running([BROWSER, *FLAGS, *logging, *places, *flags, page.as_uri()]).finish()
    assert picture.read_bytes().startswith(b"\x89PNG")
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on this machine (Debian: apt install chromium)")
@pytest.mark.parametrize("flags", [(), ("--blink-settings=preferredColorScheme=0",)], ids=["light", "dark"])
def test_browser_draws_every_chart_and_lists_completions_without_an_error(run_dir, tmp_path, flags):
    page = write_report(run_dir)
    shown, said = open_in_browser(page, tmp_path, *flags, width=500)
    assert said == []
    titles = re.findall(r"<figcaption><b>(.*?)</b>", page.read_text())
    assert sorted(re.findall(r'data-drawn="(.*?)"', shown)) == sorted(titles)
    assert len(re.findall(r'<article class="row">', shown)) == 12  # the samples of the first and the last rollout
    assert "12 of 12 found" in shown
    assert (tmp_path / "page.png").stat().st_size > 20_000
    bad = tmp_path / "bad.html"
    bad.write_text("<script>missing()</script>")
    assert "missing is not defined" in "".join(open_in_browser(bad, tmp_path)[1])


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
    # run 2, algorithm 1, health 3, title of a chart 1 and what it shows 2, that of the signals 1; steps 2, prompts 2,
    # completion 1, role and content 2, tokens 2, signal 1; settings 3
    assert html.unescape(page).count("onerror=alert(1)>") == 23
    assert page.count("{{ 7 * 7 }}") == 23


def test_an_earlier_page_stays_until_the_new_one_is_whole(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": [log(1, reward=1.0)]}))
    elsewhere = tmp_path / "elsewhere.html"
    elsewhere.write_text("something else")
    (folder / "report.html").symlink_to(elsewhere)
    monkeypatch.setattr("minimind_hf.reports.page.render", lambda *runs, **options: 1 / 0)
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
