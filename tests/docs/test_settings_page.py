# SPDX-License-Identifier: Apache-2.0
"""docs/settings.md holds every field of every class of settings, and what it says of them is so."""

import dataclasses
import re
import sys
from pathlib import Path

import pytest
import trl
from test_minimind_flags import COMMON, GRPO, PPO

from minimind_hf import GRPOConfig, PPOConfig

DOCS = Path(__file__).resolve().parents[2] / "docs"
sys.path.insert(0, str(DOCS))

import settings_tables  # noqa: E402


@pytest.fixture(scope="module")
def rows() -> list[list[str]]:
    """The rows of all tables, cut into cells."""
    lines = re.findall(r"^\| (`.*) \|$", (DOCS / "settings.md").read_text(encoding="utf-8"), re.MULTILINE)
    return [re.split(r"(?<!\\) \| ", line) for line in lines]


def test_every_field_of_every_class_is_on_the_page(rows):
    public = settings_tables.configs()
    assert [public["GRPO"], public["PPO"]] == [GRPOConfig, PPOConfig]
    known = {each.name for config in public.values() for each in dataclasses.fields(config)}
    in_tables = [re.fullmatch(r"`(\w+)`", row[0])[1] for row in rows]
    of_trl = re.findall(r"`(\w+)`", settings_tables.fields_of_trl())
    assert {*in_tables, *of_trl} == known
    assert not {*in_tables} & {*of_trl}


def test_a_field_has_one_row_for_each_meaning(rows):
    for name in ("loss_aggregation", "num_generations", "per_device_train_batch_size"):
        meanings = {
            config.__dataclass_fields__[name].metadata["help"] for config in settings_tables.configs().values()
        }
        assert sum(row[0] == f"`{name}`" for row in rows) == len(meanings) > 1
    assert sum(row[0] == "`temperature`" for row in rows) == 1


def test_every_default_is_that_of_its_class(rows):
    for name, default, *_ in rows:
        name = name.strip("`")
        said = dict(re.findall(r"(\w+)(?=[\w, ]*: (`.*?`))", default))
        for label in said or settings_tables.configs():
            declared = settings_tables.configs()[label].__dataclass_fields__[name]
            value = declared.default_factory() if declared.default is dataclasses.MISSING else declared.default
            assert f"`{getattr(value, 'value', value)!r}`" == said.get(label, default), (name, label)


def test_what_trl_calls_a_field(rows):
    theirs = {each.name for each in dataclasses.fields(trl.GRPOConfig)}
    grpo = {each.name for each in dataclasses.fields(GRPOConfig)}
    cells = {}
    for name, _, _, in_trl, _ in rows:
        cells.setdefault(name.strip("`"), []).append(in_trl)
    assert {name for name, found in cells.items() if name in grpo and any("same" in each for each in found)} == (
        theirs & cells.keys()
    )
    assert cells["temperature"] == ["GRPO: same, `1.0`<br>Distill: same, `0.9`"]
    assert cells["beta"] == ["same, `0.0`", "same, `0.5`"]
    assert cells["max_completion_length"] == ["GRPO: same, `512`<br>PPO: `response_length`"]
    assert cells["clip_epsilon"] == ["`cliprange`"]
    assert cells["speculation"] == [""]


def test_flags_of_minimind_are_among_those_that_it_has(rows):
    named = {flag for *_, cell in rows for flag in re.findall(r"`(\w+)`", cell)}
    assert named < set(f"{COMMON} {GRPO} {PPO}".split())
    cells = {name: cell for name, *_, cell in rows}
    assert cells["`max_completion_length`"] == "`max_gen_len`"
    assert cells["`lam`"] == "`lam`"
    assert cells["`run_name`"] == "`wandb_project`"


@pytest.mark.parametrize(
    "text, cell",
    [
        ("Unset: 'sequence' for cispo.", "Unset: `sequence` for cispo."),
        ("the model's own; trl's", "the model's own; trl's"),
        ("above num_generations, not above_this", "above `num_generations`, not above_this"),
        ("20%% of a | b < c", "20% of a \\| b &lt; c"),
        ("keep `bf16=True` as it is", "keep `bf16=True` as it is"),
    ],
)
def test_a_help_becomes_a_cell(text, cell):
    assert settings_tables.in_markdown(text) == cell
