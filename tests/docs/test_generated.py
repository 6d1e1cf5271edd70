# SPDX-License-Identifier: Apache-2.0
"""What the documentation says of the code is what the code says."""

import dataclasses
import importlib.util
import re
from pathlib import Path

import pytest
import trl
from naming import assert_names, raises_naming

from minimind_hf import GRPOConfig
from minimind_hf.trainer.settings.trl_fields import fields_without_effect, unsupported_fields

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_generated_part_is_up_to_date(generate):
    for page in generate.PARTS:
        text = (DOCS / page).read_text(encoding="utf-8")
        assert generate.up_to_date(page) == text, f"run python docs/generate.py for {page}"


def test_every_field_of_trl_is_in_the_table(generate):
    names = {field.name for field in dataclasses.fields(trl.GRPOConfig)}
    table = generate.trl_table()
    rows = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    rest = re.findall(r"`(\w+)`", table[table.index("### As in transformers") :])
    assert sorted([*rows, *rest]) == sorted(names)


def test_every_default_that_differs_from_trls_has_a_row_that_says_so(generate):
    theirs, ours = (generate.effective_defaults(config) for config in (trl.GRPOConfig, GRPOConfig))
    differ = {name for name in theirs if ours.get(name) != theirs[name]} - _refused()
    assert {"lr_scheduler_type", "lr_scheduler_kwargs", "bf16", "activation_checkpointing"} < differ
    rows = re.findall(r"^\| `(\w+)` \|.*\*\*`", generate.trl_table(), re.MULTILINE)
    assert set(rows) == differ


def test_the_block_with_trls_defaults_sets_all_of_them(generate):
    page = (DOCS / "migrate-from-trl.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(from minimind_hf import GRPOConfig\n.*?)```", page, re.DOTALL)
    names = {}
    exec(block.replace('output_dir="run",', 'output_dir="run", use_cpu=True,'), names)
    theirs = generate.effective_defaults(trl.GRPOConfig)
    left_out = {*_refused(), *generate.FOLLOWING}
    found = {name: getattr(names["args"], name) for name in theirs if name not in left_out}
    found = {name: getattr(value, "value", value) for name, value in found.items()}
    assert found == {name: value for name, value in theirs.items() if name not in left_out}
    assert names["args"].thinking_ratio == 0


def _refused() -> set[str]:
    return {*unsupported_fields(GRPOConfig), *fields_without_effect(GRPOConfig)}


def test_remarks_are_about_fields_that_are_supported(generate):
    own, _, _ = generate.trl_fields()
    assert set(generate.REMARKS) <= set(own)


def test_a_stale_page_is_found_and_written(generate, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(generate, "FOLDER", tmp_path)
    monkeypatch.setattr(generate, "PARTS", {"page.md": {"part": lambda: "new"}})
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- generated: part -->\nold\n<!-- end -->\nafter\n")
    assert generate.main(["--check"]) == 1
    assert_names(capsys.readouterr().err, "page.md")
    assert generate.main([]) == 0
    assert page.read_text() == "before\n<!-- generated: part -->\n\nnew\n\n<!-- end -->\nafter\n"
    assert generate.main(["--check"]) == 0
    page.write_text("nothing")
    with raises_naming(ValueError, "page.md", "'part'", "<!-- generated: part -->"):
        generate.main([])
