# SPDX-License-Identifier: Apache-2.0
"""The page in Chinese: nothing English is left but names, and a browser opens it without complaint."""

import re
import shutil

import pytest
from test_page import BROWSER, open_in_browser

from minimind_hf.language import speaking
from minimind_hf.language.chinese import REPORT
from minimind_hf.reports.page import write_report
from minimind_hf.reports.people import date_again, duration
from minimind_hf.reports.record import read_run


@pytest.fixture
def run_dir(make_trainer, tmp_path):
    make_trainer(max_steps=2, log_completions=True).train()
    return tmp_path / "run"


def shown(page: str) -> str:
    """What a page says, without its scripts, style sheet and data."""
    return re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)


def test_nothing_english_is_left(run_dir, tmp_path):
    shutil.copytree(run_dir, tmp_path / "other")
    for runs in ([run_dir], [run_dir, tmp_path / "other"]):
        page = write_report(runs, tmp_path / "page.html", language="zh").read_text(encoding="utf-8")
        assert '<html lang="zh-CN">' in page
        left = [text for text in REPORT if text != REPORT[text] and len(text) > 12 and text in shown(page)]
        assert left == []
    assert "个优化步" in write_report(run_dir, language="zh").read_text(encoding="utf-8")
    english = write_report(run_dir, language="en").read_text(encoding="utf-8")
    assert '<html lang="en">' in english and "个优化步" not in english


def test_dates_and_times_as_chinese_people_write_them(run_dir):
    with speaking("zh"):
        assert (duration(192.4), duration(7500), duration(0.42)) == ("3 分 12 秒", "2 小时 5 分", "0.42 秒")
        assert date_again("1 December 2026, 05:30 CET") == "2026 年 12 月 1 日 05:30 CET"
        assert date_again("yesterday") == "yesterday" and date_again("99 December 2026, 05:30").startswith("99")
        assert date_again(read_run(run_dir).about["started"]).startswith("20")


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on this machine (Debian: apt install chromium)")
def test_a_browser_opens_it(run_dir, tmp_path):
    page = write_report(run_dir, language="zh")
    drawn, complaints = open_in_browser(page, tmp_path)
    assert complaints == [] and "找到 16 条，显示 16 条" in drawn and "训练全程的 5 %" in drawn
    assert drawn.count("data-drawn") == page.read_text(encoding="utf-8").count("<figcaption>")
