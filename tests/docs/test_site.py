# SPDX-License-Identifier: Apache-2.0
"""What the site adds to the pages: sections of README, types of the Python interface, formulas, an example."""

import importlib.util
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def site_module(name: str):
    spec = importlib.util.spec_from_file_location(f"docs_site_{name}", DOCS / "site" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def example():
    return site_module("example")


def test_every_page_is_in_the_navigation():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r": ([\w./-]+\.md)$", text, re.MULTILINE)
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_sections_of_readmes_that_pages_include_exist():
    found = []
    for page in DOCS.rglob("*.md"):
        for name, heading in re.findall(r"^<!-- (README\w*\.md): (.+?) -->$", page.read_text("utf-8"), re.MULTILINE):
            text = (ROOT / name).read_text(encoding="utf-8")
            assert heading == "beginning" or f"\n## {heading}\n" in text, (page.name, heading)
            found.append(heading)
    assert "See it work" in found


def test_sections_are_as_they_would_be_in_docs():
    pytest.importorskip("mkdocs")
    pytest.importorskip("latex2mathml")
    hooks = site_module("hooks")
    assert not hooks.section("README.md", "beginning").startswith("#")
    install = hooks.section("README.md", "Documents")
    assert install.startswith("## Documents") and "## Licence" not in install
    assert "](settings.md)" in install and "](docs/" not in install
    page = hooks.on_page_markdown("([agents.md](agents.md#seen))", page=None, config=None, files=None)
    assert page.endswith("](agents.md#seen))") and "agents.md]" not in page
    with pytest.raises(hooks.PluginError, match="'Nowhere'"):
        hooks.section("README.md", "Nowhere")
    assert "<math" in hooks.on_page_content(
        r'<span class="arithmatex">\(a &lt; b\)</span>', page=None, config=None, files=None
    )


def test_a_page_that_would_fetch_something_is_refused():
    pytest.importorskip("mkdocs")
    pytest.importorskip("latex2mathml")
    hooks = site_module("hooks")
    page = SimpleNamespace(file=SimpleNamespace(src_uri="page.md"))
    fine = '<a href="https://a.b/c.js">c</a> <script src="c.js"></script>'
    assert hooks.on_post_page(fine, page=page, config=None) == fine
    for outside in ('<script async src="https://a.b/c.js">', '<link rel="stylesheet" href="//a.b/c.css">'):
        with pytest.raises(hooks.PluginError, match="page.md"):
            hooks.on_post_page(fine + outside, page=page, config=None)


def test_formulas_are_written_with_what_can_be_rendered():
    pytest.importorskip("latex2mathml")
    from latex2mathml.converter import convert

    for page in DOCS.rglob("*.md"):
        text = re.sub(r"```(?!math\n).*?```|``.*?``|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for formula in re.findall(r"```math\n(.*?)```", text, re.DOTALL) + re.findall(r"\$([^$\n]+)\$", text):
            left = re.findall(r"\\\w+|<mi>&</mi>", convert(formula.strip()))
            assert not left, (page.name, formula, left)


def test_the_report_of_the_example_can_be_made():
    from minimind_hf.reports.page import render
    from minimind_hf.reports.record import read_run

    run = read_run(DOCS / "example" / "run")
    assert run.steps == 200 and run.algorithm == "CISPO"
    assert run.probes and run.tokens and run.early and run.late
    assert "<script" in render(run)
    for path in (DOCS / "example" / "run").rglob("*"):
        if path.is_file():
            assert "/tmp" not in (text := path.read_text(encoding="utf-8")) and "/home" not in text, path


def test_numbers_of_the_example_have_five_digits(example, tmp_path):
    run = tmp_path / "run"
    (run / "samples").mkdir(parents=True)
    (run / "trainer_state.json").write_text(json.dumps({"log_history": [{"step": 1, "loss": 0.123456789}]}))
    (run / "samples" / "early.jsonl").write_text('{"a": [1.23456789]}\n{"a": "b"}\n')
    (run / "model.safetensors").write_text("weights")
    example.keep(run, tmp_path / "kept")
    assert json.loads((tmp_path / "kept" / "trainer_state.json").read_text())["log_history"][0]["loss"] == 0.12346
    assert (tmp_path / "kept" / "samples" / "early.jsonl").read_text() == '{"a":[1.2346]}\n{"a":"b"}\n'
    assert not (tmp_path / "kept" / "model.safetensors").exists()


def test_types_of_docstrings_become_those_of_signatures(tmp_path):
    griffe = pytest.importorskip("griffe")
    types = site_module("api_types")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text(
        '''
class Thing:
    """A thing, see docs/metrics.md."""

def made(one: int, low: float = 0.0, high=1.0) -> "Thing":
    """Makes a [`Thing`], no [`Other`].

    Args:
        one (`Tensor` of shape `(N, C)`, *optional*): First.
        low (`float`), high (`str` or `None`, *optional*): Bounds.

    Returns:
        `(loss, metrics)`. Metrics: `ratio`,
        and more.
    """
'''
    )
    package = griffe.load("pkg", search_paths=[tmp_path], extensions=griffe.Extensions(types.Types()))
    text, parameters, returns = package["made"].docstring.parsed
    assert '<autoref identifier="pkg.Thing" optional><code>Thing</code></autoref>, no `Other`' in text.value
    said = {item.name: (str(item.annotation), item.description) for item in parameters.value}
    assert said == {
        "one": ("int", "Of shape `(N, C)`. First."),
        "low": ("float", "Bounds."),
        "high": ("str | None", "Bounds."),
    }
    assert returns.value[0].description == "`(loss, metrics)`. Metrics: `ratio`,\nand more."
    assert "Thing" in str(returns.value[0].annotation)
    assert "(metrics.html)" in package["Thing"].docstring.parsed[0].value
