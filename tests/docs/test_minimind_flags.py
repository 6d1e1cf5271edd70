# SPDX-License-Identifier: Apache-2.0
"""docs/migrate-from-minimind.md names every flag of MiniMind's RL scripts, and only flags that exist here."""

import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest
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


@pytest.fixture(scope="module")
def table() -> list[tuple[str, str]]:
    text = PAGE.read_text(encoding="utf-8")
    part = text[text.index("## Flag by flag") : text.index("## What differs on purpose")]
    rows = re.findall(r"^\| (`--.*?) \| (.*?) \|", part, re.MULTILINE)
    assert len(rows) > 30
    return rows


def test_every_flag_of_minimind_is_there(table):
    named = {flag for theirs, _ in table for flag in re.findall(r"`--(\w+)", theirs)}
    assert named == set(f"{COMMON} {GRPO} {PPO}".split())


def test_every_flag_of_ours_exists(table):
    sys.path.insert(0, str(ROOT / "recipes"))
    from common import ScriptArguments

    known = {each.name for config in (GRPOConfig, PPOConfig, ModelConfig, ScriptArguments) for each in fields(config)}
    named = {flag for _, ours in table for flag in re.findall(r"--(\w+)", ours)}
    assert named - known == set()
