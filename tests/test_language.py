# SPDX-License-Identifier: Apache-2.0
"""Every text has its Chinese, with the same values and figures in it; and which language is spoken."""

import ast
import re
from itertools import chain
from pathlib import Path
from string import Formatter

import pytest
from naming import raises_naming

from minimind_hf.cli import main
from minimind_hf.health.checks import TOOL_FAILURES
from minimind_hf.health.monitor import message_of
from minimind_hf.health.rules import RULES
from minimind_hf.language import Text, Texts, chosen, language, said, speaking
from minimind_hf.language.chinese import CHINESE
from minimind_hf.reports.charts import CHARTS
from minimind_hf.reports.curves import AXES
from minimind_hf.reports.histograms import TITLES
from minimind_hf.reports.page import CHOSEN
from minimind_hf.reports.people import UNITS
from minimind_hf.reports.results import AT_THE_END, CARDS, CARDS_OF_DATA
from minimind_hf.trainer.logs.health import WRONG_WEIGHTS

ROOT = Path(__file__).resolve().parents[1]
SPEAKERS = {"said", "Text", "_said", "tell"}  # what takes a text as an argument
LOCALE = ("LC_ALL", "LC_MESSAGES", "LANG")


def literals(node: ast.expr, names: dict[str, list[ast.expr]]) -> list[str]:
    """The texts that an expression may be: itself, either side of a condition, or what a name was set to."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.Tuple):  # of `map(said, (...))`
        return [text for each in node.elts for text in literals(each, names)]
    if isinstance(node, ast.IfExp):
        return [*literals(node.body, names), *literals(node.orelse, names)]
    if isinstance(node, ast.Name):
        return [text for value in names.get(node.id, ()) for text in literals(value, {})]
    return []


def said_in(path: Path) -> set[str]:
    """The texts that a module says, as far as they stand there."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    for scope in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Module)]:
        names: dict[str, list[ast.expr]] = {}
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                names.setdefault(node.targets[0].id, []).append(node.value)
        for node in ast.walk(scope):
            if isinstance(node, ast.Call) and {_name_of(each) for each in (node.func, *node.args[:1])} & SPEAKERS:
                found |= {text for argument in node.args for text in literals(argument, names)}
    return found


def _name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def texts_of_tables() -> set[str]:
    """Texts that stand in tables, and are said from there."""
    of_rules = {text for rule in RULES for text in (rule.title, rule.fires, rule.means, *rule.remedies)}
    of_charts = {text for chart in CHARTS for text in (chart.title, chart.note, chart.unit)} - {""}
    of_page = {
        *AXES.values(),
        *CARDS.values(),
        *CARDS_OF_DATA.values(),
        *AT_THE_END.values(),
        *chain.from_iterable(TITLES.values()),
        *CHOSEN.values(),
        *(unit for unit, _ in UNITS),
    }
    return of_rules | of_charts | of_page | {*TOOL_FAILURES.values(), *WRONG_WEIGHTS, "A custom metric."}


def said_on_the_page() -> set[str]:
    """The texts of the template and of the scripts."""
    folder = ROOT / "minimind_hf" / "reports"
    files = [folder / "page.html.jinja", *(folder / "assets").glob("*.js")]
    found = {text for path in files for text in re.findall(r'said\("(.*?)"[,)]', path.read_text(encoding="utf-8"))}
    measures = (folder / "assets" / "tokens.js").read_text(encoding="utf-8").split("};")[0]
    return found | set(re.findall(r'title: "(.*?)"', measures))


def counted_in(path: Path) -> set[str]:
    """What a module counts, as one and as several."""
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    things = [text for call in calls if _name_of(call.func) == "counted" for text in literals(call.args[-1], {})]
    return {f"{{count}} {thing}{end}" for thing in things for end in ("", "s")}


def all_texts() -> set[str]:
    files = [*(ROOT / "minimind_hf").rglob("*.py"), *(ROOT / "recipes").glob("*.py")]
    joined = {", ", "; ", "; or "}
    return (
        texts_of_tables()
        | said_on_the_page()
        | joined
        | {text for path in files for text in said_in(path) | counted_in(path)}
    )


def test_every_text_has_its_chinese():
    missing = sorted(all_texts() - CHINESE.keys())
    assert not missing, f"add to minimind_hf/language/chinese/: {missing}"


def test_nothing_is_translated_that_nothing_says():
    unused = sorted(CHINESE.keys() - all_texts())
    assert not unused, f"remove from minimind_hf/language/chinese/: {unused}"


def fields_of(text: str) -> set[tuple]:
    """Names and formats of values; how a date is written is free."""
    fields = [(name.split(".")[0], form) for _, name, form, _ in Formatter().parse(text) if name is not None]
    return {(name, "" if form.startswith("%") else form) for name, form in fields}


def figures_of(text: str) -> list[str]:
    return sorted(re.findall(r"\d+(?:[.,]\d+)*", re.sub(r"{.*?}", "", text)))


def codes_of(text: str) -> set[str]:
    """Names of settings, metrics and signals, and values of settings, which no language changes."""
    return set(re.findall(r"[a-zA-Z]\w*(?:[_/]\w+)+(?:='?\w+'?)?|'\w+'|</?think>", re.sub(r"{.*?}", "", text)))


@pytest.mark.parametrize("text", sorted(CHINESE))
def test_both_have_the_same_values_figures_and_names(text):
    for part in (fields_of, figures_of, codes_of):
        assert part(CHINESE[text]) == part(text)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_speaks_both_languages(rule):
    message = message_of(rule, 3, Text("the update was not made"), "zh")
    assert message.text == message.texts["zh"] and message.texts["en"].startswith(f"{rule.title}: the update was not")
    assert str(message).startswith("第 3 步：") and re.search("[\u4e00-\u9fff]", message.advice)
    with speaking("zh"):
        assert "{" not in rule.when() and rule.when() != rule.fires


def test_texts_are_said_when_they_are_written_out():
    text = Texts(Text("the update was not made"), Text("step {step}: {message}", step=1, message=Text("training")))
    assert str(text) == "the update was not made, step 1: training"
    with speaking("zh"):
        assert str(text) == "这次更新没有执行，第 1 步：训练"
        with speaking("en"):
            assert said("training") == "training"
        assert said("no such {text}") == "no such {text}"
    assert language() == "en"


@pytest.mark.parametrize(
    ("locale", "expected"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_TW"}, "zh"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C.UTF-8"}, "en"),
        ({"LANG": "en_US.UTF-8", "LC_MESSAGES": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": ""}, "zh"),  # empty is unset
    ],
)
def test_the_locale_chooses(locale, expected, monkeypatch):
    for name in LOCALE:
        monkeypatch.delenv(name, raising=False)
    for name, value in locale.items():
        monkeypatch.setenv(name, value)
    assert chosen() == chosen("auto") == expected
    assert (chosen("en"), chosen("zh")) == ("en", "zh")


def test_another_language_is_refused():
    with raises_naming(ValueError, "language", "'fr'", "auto", "zh"):
        chosen("fr")


def test_tests_speak_english_wherever_they_run(monkeypatch):
    """conftest.py sets the first of the three, whatever it was."""
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    monkeypatch.setenv("LC_MESSAGES", "zh_CN.UTF-8")
    assert chosen() == "en"


def test_a_chinese_run(make_trainer, tmp_path, capsys):
    def constant(completions, **kwargs):
        return [0.5] * len(completions)

    trainer = make_trainer(reward=constant, max_steps=5, disable_tqdm=False, language="zh")
    trainer.train()
    (message,) = [message for message in trainer.health.messages if message.rule == "reward_constant"]
    assert message.title == "reward 恒定不变" and message.found == "最近 5 次日志里，每条回答的 reward 都是 0.5"
    told = capsys.readouterr().out
    assert "第 5/5 步：reward 0.5" in told and f"报告：{tmp_path}/run/report.html" in told and "下一步：" in told
    page = (tmp_path / "run" / "report.html").read_text()
    assert message.texts["zh"].partition("。")[0] in page and message.texts["en"] not in page
    assert main(["report", str(tmp_path / "run"), "--language", "en"]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path}/run/report.html\n"
    assert "every completion of the last 5 logs" in (tmp_path / "run" / "report.html").read_text()
