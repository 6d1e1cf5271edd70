# SPDX-License-Identifier: Apache-2.0
"""What mkdocs does besides converting pages. Nothing on the site needs a network: a page that would is refused.

- `<!-- README.md: Install -->` is replaced by that section of README.md, or of README_zh.md, and `beginning` by what
  stands before the first section: one text serves both.
- A link whose text is the name of a page's file says the title of the page.
- Tables of sentences are marked and their cells labelled: on a phone a row is then drawn as a list (assets/site.css).
- Formulas become MathML, which browsers draw themselves.
- The report of the run in docs/example/run is written to example/report.html.
"""

import re
from html import unescape
from itertools import count
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
REPORT, RUN = "example/report.html", ROOT / "docs" / "example" / "run"

_SENTENCE = 60  # characters of a cell that make it one
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_INCLUDE = re.compile(r"^<!-- (README\w*\.md): (.+?) -->$", re.MULTILINE)
_FETCHED = re.compile(r"<(?:script|link|img|iframe|source|video)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
_PAGE = re.compile(r"\[(?:docs/)?(?:zh/)?([\w-]+)\.md\]\(((?:\.\./)?\1\.md)")  # its text is the name of the file
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    from minimind_hf.reports.page import render
    from minimind_hf.reports.record import read_run

    files.append(File.generated(config, REPORT, content=render(read_run(RUN))))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    folder = Path(page.file.src_uri).parent if page else Path()
    markdown = _INCLUDE.sub(lambda found: section(*found.groups(), folder=folder), markdown)
    return _PAGE.sub(lambda found: f"[{_title(folder / found[2])}]({found[2]}", markdown)


def section(name: str, heading: str, folder: Path = Path()) -> str:
    """A section of a README with its heading and with links as they are from docs/, or from a folder in it.

    Raises:
        PluginError: If there is no such section.
    """
    text = (ROOT / name).read_text(encoding="utf-8")
    if heading == "beginning":
        found = re.search(r"\A# .*?\n+\[English\].*?\n(.*?)^## ", text, re.DOTALL | re.MULTILINE)
    else:
        found = re.search(rf"^(## {re.escape(heading)}\n.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise PluginError(f"{name} has no section {heading!r}, which a page includes.")
    text = found[1].replace("](docs/", "](").strip()
    if folder == Path():
        return text
    text = re.sub(r"\]\((?!https?:|#|/)", "](../", text)
    return text.replace(f"](../{folder.as_posix()}/", "](")


def _title(page: Path) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    return _FORMULA.sub(_mathml, _TABLE.sub(_labelled, html))


def _labelled(found: re.Match) -> str:
    """A table of three or more columns, if it has sentences: narrow screens cannot show it as it is."""
    table = found[0]
    heads = re.findall(r"<th[^>]*>(.*?)</th>", table, re.DOTALL)
    cells = re.findall(r"<td[^>]*>(.*?)</td>", table, re.DOTALL)
    if len(heads) < 3 or max(map(len, cells), default=0) < _SENTENCE or "<th>" not in table:
        return table
    labels = [re.sub(r"<[^>]+>", "", head) for head in heads]
    numbers = count()
    table = re.sub(r"<td", lambda _: f'<td data-label="{labels[next(numbers) % len(labels)]}"', table)
    return f'<div class="sentences">{table}</div>'


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    if fetched := _FETCHED.search(output):
        raise PluginError(f"{page.file.src_uri} would fetch from a server: {fetched[0]}")
    return output


def _mathml(found: re.Match) -> str:
    return convert(unescape(found[3]).strip(), display="block" if found[2] == "[" else "inline")
