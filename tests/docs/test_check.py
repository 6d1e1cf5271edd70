# SPDX-License-Identifier: Apache-2.0
"""docs/check.py: which commands it finds, which it runs, and that the pages are written as it expects."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from naming import raises_naming

ROOT = Path(__file__).resolve().parents[2]
PAGE = """\
Text.

```bash
echo one > out.txt
```

```python
print("not run")
```

<!-- docs-check: needs gpu, hub -->
```bash
false
```

```bash
echo one > out.txt
```

```bash
grep -q one out.txt
```
"""


@pytest.fixture(scope="module")
def check():
    spec = importlib.util.spec_from_file_location("docs_check", ROOT / "docs" / "check.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["docs_check"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_blocks_are_found_with_their_marks(check):
    blocks = list(check.find_blocks("page.md", PAGE))
    assert [(block.line, block.needs) for block in blocks] == [(4, ()), (13, ("gpu", "hub")), (17, ()), (21, ())]
    assert blocks[0].text == "echo one > out.txt" and blocks[1].place == "page.md:13"


def test_what_is_run_and_what_is_not(check):
    blocks = list(check.find_blocks("page.md", PAGE))
    reasons = [reason for _, reason in check.plan(blocks, able=["hub"])]
    assert reasons == [None, "needs a GPU", "same as page.md:4", None]
    assert [reason for _, reason in check.plan(blocks, able=["hub", "gpu"])].count(None) == 3
    later = [reason for _, reason in check.plan(blocks, able=[], start="page.md:17")]
    assert later == [
        "before page.md:17",
        "needs a GPU, the Hub, or another server on the network",
        "same as page.md:4",
        None,
    ]
    with raises_naming(check.PageError, "page.md:5", "page.md:4"):
        check.plan(blocks, able=[], start="page.md:5")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("<!-- docs-check: needs a miracle -->\n```bash\nx\n```", ["page.md:1", "'a miracle'", "gpu"]),
        ("<!-- docs-check: needs gpu -->\ntext\n```bash\nx\n```", ["page.md:2", "docs-check", "before"]),
        ("<!-- docs-check: needs gpu -->\n```python\nx\n```", ["page.md:2", "docs-check", "python"]),
        ("```bash\nx", ["page.md:1", "end"]),
    ],
)
def test_pages_that_cannot_be_checked(check, text, named):
    with raises_naming(check.PageError, *named):
        list(check.find_blocks("page.md", text))


def test_blocks_run_in_order_in_one_folder_and_failures_are_seen(check, tmp_path):
    blocks = [
        check.Block("p", i, text)
        for i, text in enumerate(["echo 1 > a", "grep -q 1 a", "false\necho hidden", "exit 3 | cat"])
    ]
    env = {"PATH": "/usr/bin:/bin"}
    succeeded = [check.run_block(block, tmp_path, env, tmp_path / "log")[0] for block in blocks]
    assert succeeded == [True, True, False, False]


def test_the_pages_are_well_formed_and_say_little_that_is_not_run(check):
    planned = check.plan(check.all_blocks(), able=[])
    assert len(planned) > 15
    assert sum(reason is None for _, reason in planned) >= 10


def test_no_command_escapes_in_an_indented_block():
    """Commands in four-space blocks would not be run."""
    command = re.compile(r"^ {4}(make|python|minimind-hf|accelerate|pip|git) ")
    for pattern in ("README.md", "README_zh.md", "docs/*.md", "docs/zh/*.md"):
        for path in ROOT.glob(pattern):
            fenced = False
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                fenced ^= line.startswith("```")
                assert fenced or not command.match(line), f"{path.name}:{number}: fence it as bash"


def test_the_chinese_readme_has_all_commands_in_the_same_order(check):
    """And some of its own: mirrors, and the way from a checkpoint to a report on one page."""
    english, chinese = (
        [(block.text, block.needs) for block in check.all_blocks([name])] for name in ("README.md", "README_zh.md")
    )
    rest = iter(chinese)
    assert [block for block in english if block not in rest] == []


def test_every_link_within_the_project_leads_somewhere():
    for pattern in ("README.md", "README_zh.md", "docs/*.md", "docs/zh/*.md"):
        for path in ROOT.glob(pattern):
            for link in re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8")):
                made = link == "example/report.html"  # by make docs
                assert link.startswith("http") or made or (path.parent / link).exists(), f"{path.name}: {link}"


def test_every_python_block_is_python():
    for pattern in ("README.md", "README_zh.md", "docs/*.md", "docs/zh/*.md"):
        for path in ROOT.glob(pattern):
            for block in re.findall(
                r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
            ):
                compile(block, path.name, "exec")


def test_the_summary_has_times_and_what_is_marked(check):
    results = [
        {"place": "a.md:1", "command": "quick \\\n  --flag", "ok": True, "seconds": 2.0},
        {"place": "a.md:5", "command": "slow\nmore", "ok": False, "seconds": 30.0},
        {"place": "b.md:1", "command": "x", "skipped": "needs a GPU"},
        {"place": "b.md:4", "command": "quick", "skipped": "same as a.md:1"},
        {"place": "c.md:4", "command": "y", "skipped": "needs a GPU"},
    ]
    assert check.summary(results).split("\n") == [
        "",
        "2 blocks ran:",
        "      30 s  FAIL  a.md:5  slow",
        "       2 s  ok    a.md:1  quick",
        "2 blocks are marked and were not run (see --able):",
        "  needs a GPU: b.md:1, c.md:4",
    ]
