# SPDX-License-Identifier: Apache-2.0
"""The Chinese pages say what the English ones say: the same commands, figures, names and sections."""

import re
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
sys.path[:0] = [str(DOCS), str(ROOT / "recipes")]

import chinese_minimind  # noqa: E402
import chinese_settings  # noqa: E402
import settings_tables  # noqa: E402

from minimind_hf.trainer.settings import minimind_flags  # noqa: E402

PAIRS = {f"docs/zh/{path.name}": f"docs/{path.name}" for path in sorted((DOCS / "zh").glob("*.md"))}
del PAIRS["docs/zh/index.md"]  # shows sections of README_zh.md
PAIRS["README_zh.md"] = "README.md"
OWN = {"README_zh.md"}  # has sections that its English does not need
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
FENCED = re.compile(r"^```.*?^```$|^(?:    .*\n)+", re.MULTILINE | re.DOTALL)


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(text: str) -> list[str]:
    """The fenced blocks, without comments."""
    found = re.findall(r"^```.*?^```$", text, re.MULTILINE | re.DOTALL)
    return [re.sub(r"(?m)(^| +)#(?! ?!).*$", "", block) for block in found]


def sections(text: str) -> list[str]:
    return re.split(r"^#+ ", FENCED.sub("", text), flags=re.MULTILINE)[1:]


def in_digits(text: str) -> str:
    """Dates as numbers, in both languages; without links, whose addresses differ."""
    text = re.sub(r"\]\([^)]*\)|<a id=.*?>", "]", text)
    for number, month in enumerate(MONTHS, 1):
        text = re.sub(rf"(\d+) {month} (\d{{4}})", rf"\2 {number} \1", text)
    return text


def figures(text: str) -> Counter:
    """Every number in prose and tables, with its sign."""
    text = re.sub(r"`[^`]*`", "", in_digits(text))
    return Counter(re.findall(r"(?:(?<=[\s|(\[])[-+])?\d+(?:,\d{3})*(?:\.\d+)?", text))


def names(text: str) -> Counter:
    """What stands as code: settings, flags, values, files."""
    return Counter(" ".join(each.split()) for each in re.findall(r"`([^`]+)`", in_digits(text)))


def pairs_of_sections(page: str) -> list[tuple[str, str]]:
    ours, theirs = sections(read(page)), sections(read(PAIRS[page]))
    if page in OWN:
        ours = [each for each in ours if "<!-- 仅中文 -->" not in each]
    assert len(ours) == len(theirs), [each.split("\n")[0] for each in ours]
    return list(zip(ours, theirs, strict=True))


@pytest.mark.parametrize("page", PAIRS)
def test_the_same_commands(page):
    ours, theirs = blocks(read(page)), blocks(read(PAIRS[page]))
    if page in OWN:  # those of the English page in its order, and others between them
        rest = iter(ours)
        missing = [block for block in theirs if block not in rest]
        assert missing == []
    else:
        assert ours == theirs


@pytest.mark.parametrize("page", PAIRS)
def test_the_same_figures(page):
    for ours, theirs in pairs_of_sections(page):
        assert figures(ours) == figures(theirs), theirs.split("\n")[0]


@pytest.mark.parametrize("page", PAIRS)
def test_the_same_names(page):
    for ours, theirs in pairs_of_sections(page):
        assert names(ours) == names(theirs), theirs.split("\n")[0]


def test_every_setting_has_its_chinese():
    found = {
        (name, config.__dataclass_fields__[name].metadata["help"])
        for config in settings_tables.configs().values()
        for names in settings_tables._groups().values()
        for name in names
        if name in config.__dataclass_fields__
    }
    known = chinese_settings.OURS, chinese_settings.OF_TRANSFORMERS
    lacking = sorted((name, text) for name, text in found if text not in known[0] and name not in known[1])
    assert not lacking, f"add to docs/chinese_settings.py: {lacking}"
    unused = {*known[0]} - {text for _, text in found}
    assert not unused, f"no setting has these helps, change docs/chinese_settings.py: {sorted(unused)}"
    assert {*known[1]} <= {name for name, text in found if text not in known[0]}


def test_no_cell_of_the_tables_about_minimind_is_left_over():
    rows = (*minimind_flags.RL, *minimind_flags.AGENT, *minimind_flags.BEFORE_RL)
    assert {*chinese_minimind.CELLS} <= {cell for row in rows for cell in row}


def test_every_page_that_a_user_of_minimind_needs_is_there():
    needed = "migrate-from-minimind your-own journey agents troubleshooting settings"
    assert {Path(page).stem for page in PAIRS} >= {*needed.split()}
    for page in PAIRS:
        assert len(re.findall("[\u4e00-\u9fff]", read(page))) > 300
