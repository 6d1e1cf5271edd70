# SPDX-License-Identifier: Apache-2.0
"""docs/migrate-from-minimind.md names every flag of MiniMind's RL scripts, and only flags that exist here."""

import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from trl import ModelConfig

from minimind_hf import GRPOConfig, PPOConfig

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "migrate-from-minimind.md"

COMMON = (
    "save_dir save_weight epochs batch_size learning_rate device dtype num_workers accumulation_steps grad_clip "
    "log_interval save_interval hidden_size num_hidden_layers use_moe max_seq_len max_gen_len data_path from_weight "
    "reward_model_path from_resume use_wandb wandb_project use_compile debug_mode debug_interval thinking_ratio "
    "rollout_engine sglang_base_url sglang_model_path sglang_shared_path"
)
GRPO = "num_generations beta loss_type epsilon epsilon_high"
PPO = (
    "critic_learning_rate clip_epsilon vf_coef kl_coef gamma lam cliprange_value ppo_update_iters early_stop_kl "
    "mini_batch_size debug_log_ratio"
)


def rows_between(start: str, end: str) -> list[tuple[str, str]]:
    """The first two cells of the rows of a table."""
    text = PAGE.read_text(encoding="utf-8")
    part = text[text.index(f"\n## {start}\n") : text.index(f"\n## {end}\n")]
    return re.findall(r"^\| ([`(].*?) \| (.*?) \|", part, re.MULTILINE)


@pytest.fixture(scope="module")
def table() -> list[tuple[str, str]]:
    return rows_between("Flag by flag", "The agent script")


@pytest.fixture(scope="module")
def agent_table() -> list[tuple[str, str]]:
    return rows_between("The agent script", "What differs on purpose")


def flags_of(cells) -> set[str]:
    return {flag for cell in cells for flag in re.findall(r"--(\w+)", cell)}


def test_every_flag_of_minimind_is_there(table, agent_table):
    named = flags_of(theirs for theirs, _ in table)
    assert named == set(f"{COMMON} {GRPO} {PPO}".split())
    # The agent script has those of train_grpo.py, and one more.
    assert flags_of(theirs for theirs, _ in agent_table) - named == {"max_total_len"}


def test_every_flag_of_ours_exists(table, agent_table):
    sys.path.insert(0, str(ROOT / "recipes"))
    from agent import AgentArguments

    known = {each.name for config in (GRPOConfig, PPOConfig, ModelConfig, AgentArguments) for each in fields(config)}
    assert flags_of(ours for _, ours in [*table, *agent_table]) - known == set()


def test_what_the_page_says_of_the_agent_settings_is_what_the_file_sets(agent_table):
    settings = yaml.safe_load((ROOT / "recipes" / "agent_minimind.yaml").read_text(encoding="utf-8"))
    in_the_file = {flag for flag in flags_of(ours for _, ours in agent_table) if flag in settings}
    assert {"max_turns", "max_turn_length", "max_completion_length", "max_observation_length"} <= in_the_file
    remarks = {theirs: ours for theirs, ours in agent_table}
    assert remarks["(in the code) 3 turns"] == "`--max_turns`" and settings["max_turns"] == 3
    assert (settings["num_generations"], settings["per_device_train_batch_size"]) == (4, 8)
    assert settings["thinking_ratio"] == 0.1
